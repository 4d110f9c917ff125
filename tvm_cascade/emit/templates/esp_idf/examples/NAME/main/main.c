#include <stdio.h>

@includes@
@calls@
void app_main(void)
{
@report@
}
