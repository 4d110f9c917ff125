/* What main.c needs of the place it runs in when it feeds and measures the network: the emulator (port_semihosting.c), a
 * serial line (port_serial.c) or a host process (port_host.c). None of them allocates or buffers. */
#ifndef TVM_CASCADE_PORT_H
#define TVM_CASCADE_PORT_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

void port_open(void);
/* Bytes read, fewer than `size` only at the end of the input. */
uint32_t port_read(void *data, uint32_t size);
void port_write(const void *data, uint32_t size);
void port_print(const char *text);
void port_exit(int status);

#ifdef __cplusplus
}
#endif
#endif
