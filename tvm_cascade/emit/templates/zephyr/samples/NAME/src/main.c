#include <zephyr/kernel.h>
#include <zephyr/sys/printk.h>

@includes@
@calls@
int main(void)
{
@print_all@
    return 0;
}
