#include <stdint.h>

@includes@
@calls@
/* One inference; 0 where nothing went wrong. */
int32_t @name@_example(void);

int32_t @name@_example(void)
{
    int32_t status = 0;
@call_all@
    return status;
}
