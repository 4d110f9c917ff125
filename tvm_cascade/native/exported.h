/* EXPORTED: functions that Python calls through ctypes; all others stay inside of the library. */
#ifndef TVM_CASCADE_EXPORTED_H
#define TVM_CASCADE_EXPORTED_H
#ifdef _WIN32
#define EXPORTED __declspec(dllexport)
#else
#define EXPORTED __attribute__((visibility("default")))
#endif
#endif
