#include <Arduino.h>

@sketch@