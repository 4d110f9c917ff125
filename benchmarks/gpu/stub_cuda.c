/* A stand-in for NVIDIA's driver (-DDRIVER: libcuda.so.1) and CUDA's runtime library (libcudart.so.13), to rehearse with.
 *
 * It has what libtvm_runtime_cuda.so calls. Memory is the host's and copies are copies; kernels compute nothing and are
 * counted. What CUDA refuses while a stream is captured is refused here too: an allocation, a wait, a launch on a stream
 * that takes no part in the capture, an end of the capture before all streams have been joined. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef DRIVER

/* Of this library, by the loader: the runtime's stand-in, which is loaded first, does the bookkeeping. */
int stub_launch(void *stream);

typedef struct { unsigned grid[3], block[3], shared; void *stream; } config_t;
int cuDeviceGetName(char *name, int size, int device) { snprintf(name, size, "stand-in"); return 0; }
int cuFuncSetAttribute(void *function, int attribute, int value) { return 0; }
int cuGetErrorName(int error, const char **name) { *name = "CUDA_ERROR_STAND_IN"; return 0; }
int cuGetErrorString(int error, const char **text) { *text = "refused by the stand-in for CUDA's driver"; return 0; }
int cuLaunchKernelEx(const config_t *config, void *function, void **args, void **extra) {
  return stub_launch(config->stream);
}
int cuModuleGetFunction(void **function, void *module, const char *name) { *function = module; return 0; }
int cuModuleLoadData(void **module, const void *image) { *module = (void *)image; return image ? 0 : 1; }
int cuModuleUnload(void *module) { return 0; }
int cuTensorMapEncodeTiled(void) { return 801; }
int cuInit(unsigned flags) { return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }

#else

enum { OK = 0, REFUSED = 900, UNJOINED = 904, ISOLATED = 906 };
typedef struct { int captured, pending; } stream_t; /* pending: work that the captured stream has not waited for */
typedef struct { stream_t *stream; } event_t;
static stream_t usual, *capturing, *forked[64];
static int forks;
static int64_t counts[6]; /* allocations, launches, captures, kernels in captures, replays, copies */
static int last;

static int refuse(int code) { return last = code; }
static stream_t *known(void *stream) { return stream ? (stream_t *)stream : &usual; }
int64_t stub_count(int which) { return counts[which]; }

int stub_launch(void *stream) {
  stream_t *s = known(stream);
  if (capturing && !s->captured) return refuse(ISOLATED);
  counts[1]++;
  if (capturing) counts[3]++;
  s->pending = 1;
  return OK;
}
static int allocate(void **memory, size_t size) {
  if (capturing) return refuse(REFUSED);
  counts[0]++;
  return posix_memalign(memory, 256, size ? size : 1) ? 2 : (memset(*memory, 0, size), OK);
}
int cudaMalloc(void **memory, size_t size) { return allocate(memory, size); }
int cudaMallocHost(void **memory, size_t size) { return allocate(memory, size); }
int cudaFree(void *memory) { return capturing ? refuse(REFUSED) : (free(memory), OK); }
int cudaFreeHost(void *memory) { return cudaFree(memory); }
int cudaMemGetInfo(size_t *left, size_t *all) { *left = *all = (size_t)1 << 36; return OK; }
int cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream) {
  if (capturing && !known(stream)->captured) return refuse(ISOLATED);
  counts[5]++;
  memmove(to, from, size);
  return OK;
}
int cudaMemcpyPeerAsync(void *to, int there, const void *from, int here, size_t size, void *stream) {
  return cudaMemcpyAsync(to, from, size, 3, stream);
}

int cudaStreamCreate(void **stream) { *stream = calloc(1, sizeof(stream_t)); return OK; }
int cudaStreamCreateWithFlags(void **stream, unsigned flags) { return cudaStreamCreate(stream); }
int cudaStreamDestroy(void *stream) { free(stream); return OK; }
int cudaStreamSynchronize(void *stream) { return known(stream)->captured ? refuse(REFUSED) : OK; }
int cudaEventCreate(void **event) { *event = calloc(1, sizeof(event_t)); return OK; }
int cudaEventDestroy(void *event) { free(event); return OK; }
int cudaEventRecord(void *event, void *stream) { ((event_t *)event)->stream = known(stream); return OK; }
int cudaEventSynchronize(void *event) { return capturing ? refuse(REFUSED) : OK; }
int cudaEventElapsedTime(float *ms, void *begin, void *end) { *ms = 1.0f; return OK; }
int cudaStreamWaitEvent(void *stream, void *event, unsigned flags) {
  stream_t *waits = known(stream), *source = ((event_t *)event)->stream;
  if (!capturing || !source || !source->captured) return capturing && waits->captured ? refuse(ISOLATED) : OK;
  if (!waits->captured) {
    if (forks == 64) return refuse(REFUSED);
    waits->captured = 1;
    forked[forks++] = waits;
  }
  if (source != capturing) source->pending = 0;
  waits->pending = 1;
  return OK;
}

int cudaStreamBeginCapture(void *stream, int mode) {
  if (capturing || !stream) return refuse(REFUSED);
  capturing = known(stream);
  capturing->captured = 1;
  forks = 0;
  counts[2]++;
  return OK;
}
int cudaStreamEndCapture(void *stream, void **graph) {
  int unjoined = 0;
  if (capturing != known(stream)) return refuse(REFUSED);
  for (int k = 0; k < forks; k++) {
    unjoined |= forked[k]->pending;
    forked[k]->captured = forked[k]->pending = 0;
  }
  capturing->captured = 0;
  capturing = 0;
  *graph = unjoined ? 0 : malloc(1);
  return unjoined ? refuse(UNJOINED) : OK;
}
int cudaGraphInstantiate(void **exec, void *graph, unsigned long long flags) { *exec = malloc(1); return OK; }
int cudaGraphLaunch(void *exec, void *stream) {
  if (capturing) return refuse(REFUSED);
  counts[4]++;
  return OK;
}
int cudaGraphDestroy(void *graph) { free(graph); return OK; }
int cudaGraphExecDestroy(void *exec) { free(exec); return OK; }

int cudaGetDevice(int *device) { *device = 0; return OK; }
int cudaSetDevice(int device) { return device ? 101 : OK; }
int cudaGetDeviceCount(int *count) { *count = 1; return OK; }
int cudaGetDeviceProperties(void *properties, int device) { snprintf(properties, 256, "stand-in"); return OK; }
int cudaDeviceGetAttribute(int *value, int attribute, int device) {
  switch (attribute) {
    case 1: *value = 1024; break;    /* threads of a block */
    case 8: *value = 49152; break;   /* bytes of shared memory of a block */
    case 10: *value = 32; break;     /* threads of a warp */
    case 16: *value = 132; break;    /* multiprocessors */
    case 75: *value = 9; break;      /* compute capability: major, minor */
    case 76: *value = 0; break;
    default: *value = 65535;
  }
  return OK;
}
int cudaGetLastError(void) { int code = last; last = OK; return code; }
int cudaPeekAtLastError(void) { return last; }
const char *cudaGetErrorName(int error) { return error ? "cudaErrorStandIn" : "cudaSuccess"; }
const char *cudaGetErrorString(int error) {
  return error == REFUSED ? "not allowed while a stream is captured" : error == UNJOINED ? "a captured stream was not joined"
       : error == ISOLATED ? "a stream outside of the capture was used" : error ? "refused by the stand-in" : "no error";
}
#endif
