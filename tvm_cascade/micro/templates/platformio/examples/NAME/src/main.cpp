#include <Arduino.h>

@library_includes@
@calls@
void setup()
{
    Serial.begin(115200);
}

void loop()
{
@report_all@
    delay(1000);
}
