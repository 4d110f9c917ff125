#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>

#include "esp_timer.h"

@includes@
@calls@
void app_main(void)
{
@report@
}
