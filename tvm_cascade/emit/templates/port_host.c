/* A host process: inputs.bin and results.bin in the working directory, for sanitizers and for testing without an emulator. */
#include "port.h"

#include <stdio.h>
#include <stdlib.h>

static FILE *input_file;
static FILE *output_file;

void port_open(void)
{
    input_file = fopen("inputs.bin", "rb");
    output_file = fopen("results.bin", "wb");
    if (input_file == NULL || output_file == NULL) {
        port_print("port: cannot open inputs.bin or results.bin\n");
        port_exit(3);
    }
}

uint32_t port_read(void *data, uint32_t size)
{
    return (uint32_t)fread(data, 1, size, input_file);
}

void port_write(const void *data, uint32_t size)
{
    if (fwrite(data, 1, size, output_file) != size) {
        port_exit(3);
    }
}

void port_print(const char *text)
{
    (void)fputs(text, stderr);
}

void port_exit(int status)
{
    if (output_file != NULL && fclose(output_file) != 0) {
        status = 3;
    }
    exit(status);
}
