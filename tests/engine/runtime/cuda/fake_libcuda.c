/* A stand-in for NVIDIA's libcuda.so.1: the real cuda-core and cuda-bindings call it on machines without a GPU.

It refuses what a driver refuses: a thread without a current context, memory outside of live allocations, code
of another generation, launches beyond the limits of the device or of the kernel (read from the cubin's ELF
sections, as the driver reads them), more shared memory than was opted in to, work that a capture forbids.
Memory is the host's and starts as 0xFF; addresses are never handed out twice. Work is queued and executed by
the next synchronization, in order. A kernel whose pointer leads into no live allocation poisons the context:
from then on every call answers CUDA_ERROR_ILLEGAL_ADDRESS. Each reason is a line on stderr.

Time is simulated: every call costs the host the microseconds below, and the device begins work when the host
has sent it and earlier work is done. So what a test reads from events is exact on any machine.

FAKE_CUDA_SM (90), FAKE_CUDA_MEMORY (bytes), FAKE_CUDA_FAULT=TEXT: kernels with TEXT in their names touch an illegal
address, FAKE_CUDA_HANG=TEXT: they never end. FAKE_CUDA_SIZES=1: check the size of each parameter by the header
that PYTHONMALLOC=debug puts before it, for cuda-core keeps each in memory of PyMem_Malloc. */

#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <elf.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ALLOCATIONS = 1 << 14, KERNELS = 1 << 12, PARAMETERS = 64, NAME = 200 };
enum { STATIC_SHARED = 49152, OPT_IN_SHARED = 232448, RESERVED_SHARED = 1024, PROCESSORS = 132 };

/* us of the host for a call, and of the device for the work. */
static const double LAUNCH_CALL = 31, EVENT_CALL = 6, GRAPH_CALL = 10, OTHER_CALL = 5;
static const double KERNEL_TIME = 2, COPY_TIME = 1.5, BYTE_TIME = 1 / 4e6;

typedef struct { uint64_t address; size_t size; int live; } Allocation;
typedef struct {
  char name[NAME];
  int count, sizes[PARAMETERS];
  unsigned threads, shared, dynamic; /* most threads; static bytes; dynamic bytes opted in to */
} Kernel;
typedef struct { double stamp; int recorded, timing; } Event;
typedef enum { COPY_IN, COPY_OUT, FILL, LAUNCH, EVENT } Kind;
typedef struct {
  Kind kind;
  uint64_t address;
  size_t size;
  void *host; /* COPY_OUT: where to; COPY_IN: a copy of what to write */
  unsigned char byte;
  Kernel *kernel;
  unsigned grid[3];
  uint64_t values[PARAMETERS];
  Event *event;
} Work;
typedef struct { Work *items; size_t count, room; } Queue;
typedef struct { Queue works; int live; } Graph;
typedef struct { int live, status; Graph *graph; } Stream; /* status: of the capture */
typedef void (*Hook)(const char *, const unsigned *, const uint64_t *);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Allocation allocations[ALLOCATIONS];
static Kernel kernels[KERNELS];
static int allocation_count, kernel_count, poison, context_object;
static size_t used;
static double host_time, device_time;
static Queue queue;
static Hook hook;
static __thread CUcontext current;

/* For tests: what runs a kernel; launches so far; microseconds of the host. */
static long launches;
void fake_cuda_on_launch(Hook given) { hook = given; }
long fake_cuda_launches(void) { return launches; }
double fake_cuda_host_time(void) { return host_time; }

static CUresult refused(CUresult code, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "fake libcuda: ");
  vfprintf(stderr, format, arguments);
  fprintf(stderr, " (CUDA error %d)\n", code);
  va_end(arguments);
  return code;
}

static long setting(const char *name, long otherwise) {
  const char *text = getenv(name);
  return text ? atol(text) : otherwise;
}

#define ENTER(cost)                                                              \
  pthread_mutex_lock(&lock);                                                     \
  host_time += (cost);                                                           \
  CUresult status = CUDA_SUCCESS;                                                \
  if (!current)                                                                  \
    status = refused(CUDA_ERROR_INVALID_CONTEXT, "%s: no context is current in this thread", __func__ + 5); \
  else if (poison)                                                               \
    status = poison;
#define LEAVE             \
  pthread_mutex_unlock(&lock); \
  return status

static Allocation *at(uint64_t address, size_t size) {
  for (int i = 0; i < allocation_count; i++) {
    Allocation *a = &allocations[i];
    if (a->live && a->address <= address && address + size <= a->address + a->size) return a;
  }
  return NULL;
}

static CUresult within(const char *what, uint64_t address, size_t size) {
  if (at(address, size)) return CUDA_SUCCESS;
  for (int i = 0; i < allocation_count; i++)
    if (allocations[i].address <= address && address < allocations[i].address + allocations[i].size)
      return refused(CUDA_ERROR_INVALID_VALUE, allocations[i].live ? "%s of %zu bytes leaves its allocation"
                                                                   : "%s of %zu bytes in memory that was freed",
                     what, size);
  return refused(CUDA_ERROR_INVALID_VALUE, "%s of %zu bytes at %#lx, which no allocation holds", what, size, address);
}

static void push(Queue *to, Work work) {
  if (to->count == to->room) to->items = realloc(to->items, (to->room = 2 * to->room + 64) * sizeof(Work));
  to->items[to->count++] = work;
}

static double duration(const Work *work) {
  switch (work->kind) {
    case LAUNCH: return KERNEL_TIME;
    case EVENT: return 0;
    default: return COPY_TIME + work->size * BYTE_TIME;
  }
}

static void enqueue(Work work) {
  if (device_time < host_time) device_time = host_time;
  device_time += duration(&work);
  if (work.kind == EVENT) work.event->stamp = device_time, work.event->recorded = 1;
  else push(&queue, work);
}

static int named(const char *variable, const Kernel *kernel) {
  const char *text = getenv(variable);
  return text && strstr(kernel->name, text);
}

static void execute(Work *work) {
  if (poison) return;
  if (work->kind == LAUNCH) {
    Kernel *k = work->kernel;
    for (int i = 0; i < k->count; i++)
      if (k->sizes[i] == 8 && !at(work->values[i], 1)) {
        poison = refused(CUDA_ERROR_ILLEGAL_ADDRESS, "kernel %s: parameter %d is %#lx, which no live allocation holds",
                         k->name, i, work->values[i]);
        return;
      }
    if (named("FAKE_CUDA_HANG", k)) pause();
    if (named("FAKE_CUDA_FAULT", k))
      poison = refused(CUDA_ERROR_ILLEGAL_ADDRESS, "kernel %s faults", k->name);
    else if (hook) hook(k->name, work->grid, work->values);
  } else if (!at(work->address, work->size)) {
    poison = refused(CUDA_ERROR_ILLEGAL_ADDRESS, "a copy or fill of %zu bytes in memory that was freed", work->size);
  } else if (work->kind == COPY_IN) {
    memcpy((void *)work->address, work->host, work->size);
  } else if (work->kind == COPY_OUT) {
    memcpy(work->host, (void *)work->address, work->size);
  } else {
    memset((void *)work->address, work->byte, work->size);
  }
}

static CUresult drain(void) {
  Queue held = queue;
  queue = (Queue){0};
  pthread_mutex_unlock(&lock); /* a hook may call the driver */
  for (size_t i = 0; i < held.count; i++) {
    execute(&held.items[i]);
    if (held.items[i].kind == COPY_IN) free(held.items[i].host);
  }
  free(held.items);
  pthread_mutex_lock(&lock);
  if (host_time < device_time) host_time = device_time;
  return poison;
}

/* Send work to a stream, or into the graph that captures it. */
static CUresult send(CUstream handle, Work work) {
  Stream *stream = (Stream *)handle;
  if (stream && !stream->live) return refused(CUDA_ERROR_INVALID_HANDLE, "work for a stream that was destroyed");
  if (!stream || stream->status == CU_STREAM_CAPTURE_STATUS_NONE) enqueue(work);
  else if (stream->status == CU_STREAM_CAPTURE_STATUS_INVALIDATED) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  else if (work.kind == COPY_IN || work.kind == COPY_OUT) {
    stream->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
    return refused(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "a copy of pageable memory while a stream is captured");
  } else push(&stream->graph->works, work);
  return CUDA_SUCCESS;
}

static Stream *streams[64];
static int stream_count;

/* What a capture in mode thread_local forbids. */
static CUresult unsafe(const char *what) {
  for (int i = 0; i < stream_count; i++)
    if (streams[i]->live && streams[i]->status != CU_STREAM_CAPTURE_STATUS_NONE) {
      streams[i]->status = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
      return refused(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "%s while a stream is captured", what);
    }
  return CUDA_SUCCESS;
}

#define F(name) static CUresult fake_##name

/* --- devices and contexts -------------------------------------------------------------------------------- */

F(cuInit)(unsigned flags) { return CUDA_SUCCESS; }
F(cuDriverGetVersion)(int *version) { *version = 13000; return CUDA_SUCCESS; }
F(cuDeviceGetCount)(int *count) { *count = 1; return CUDA_SUCCESS; }
F(cuDeviceGet)(CUdevice *device, int number) {
  *device = number;
  return number ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}
F(cuDeviceGetName)(char *name, int size, CUdevice device) { snprintf(name, size, "Fake GPU"); return CUDA_SUCCESS; }
F(cuDeviceGetUuid)(CUuuid *uuid, CUdevice device) { memset(uuid, 7, 16); return CUDA_SUCCESS; }
F(cuDeviceGetAttribute)(int *value, CUdevice_attribute attribute, CUdevice device) {
  long sm = setting("FAKE_CUDA_SM", 90);
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = sm / 10; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = sm % 10; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = PROCESSORS; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = OPT_IN_SHARED; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: *value = STATIC_SHARED; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    default: *value = 1;
  }
  return CUDA_SUCCESS;
}
F(cuDevicePrimaryCtxRetain)(CUcontext *context, CUdevice device) {
  *context = (CUcontext)&context_object;
  return CUDA_SUCCESS;
}
F(cuDevicePrimaryCtxRelease)(CUdevice device) { return CUDA_SUCCESS; }
F(cuCtxSetCurrent)(CUcontext context) {
  if (context && context != (CUcontext)&context_object)
    return refused(CUDA_ERROR_INVALID_CONTEXT, "cuCtxSetCurrent: no such context");
  current = context;
  return CUDA_SUCCESS;
}
F(cuCtxGetCurrent)(CUcontext *context) { *context = current; return CUDA_SUCCESS; }
F(cuCtxPushCurrent)(CUcontext context) { current = context; return CUDA_SUCCESS; }
F(cuCtxPopCurrent)(CUcontext *context) {
  if (context) *context = current;
  current = NULL;
  return CUDA_SUCCESS;
}
F(cuCtxGetDevice)(CUdevice *device) { *device = 0; return current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT; }
F(cuCtxGetStreamPriorityRange)(int *least, int *greatest) { *least = 0; *greatest = -5; return CUDA_SUCCESS; }
F(cuCtxSynchronize)(void) { ENTER(OTHER_CALL) if (!status) status = drain(); LEAVE; }
F(cuGetErrorName)(CUresult error, const char **name) {
  switch (error) {
#define NAMED(code) case code: *name = #code; return CUDA_SUCCESS
    NAMED(CUDA_SUCCESS); NAMED(CUDA_ERROR_INVALID_VALUE); NAMED(CUDA_ERROR_OUT_OF_MEMORY);
    NAMED(CUDA_ERROR_INVALID_DEVICE); NAMED(CUDA_ERROR_INVALID_CONTEXT); NAMED(CUDA_ERROR_NO_BINARY_FOR_GPU);
    NAMED(CUDA_ERROR_INVALID_IMAGE); NAMED(CUDA_ERROR_INVALID_HANDLE); NAMED(CUDA_ERROR_NOT_FOUND);
    NAMED(CUDA_ERROR_NOT_READY); NAMED(CUDA_ERROR_ILLEGAL_ADDRESS); NAMED(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
    NAMED(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED); NAMED(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    default: *name = "CUDA_ERROR_UNKNOWN"; return CUDA_SUCCESS;
  }
}
F(cuGetErrorString)(CUresult error, const char **text) { return fake_cuGetErrorName(error, text); }

/* --- memory ---------------------------------------------------------------------------------------------- */

static size_t capacity(void) { return setting("FAKE_CUDA_MEMORY", 1L << 30); }

F(cuMemAlloc)(CUdeviceptr *address, size_t size) {
  ENTER(OTHER_CALL)
  if (!status) status = unsafe("cuMemAlloc");
  if (!status && !size) status = refused(CUDA_ERROR_INVALID_VALUE, "an allocation of no bytes");
  if (!status && (used + size > capacity() || allocation_count == ALLOCATIONS)) status = CUDA_ERROR_OUT_OF_MEMORY;
  if (!status) {
    void *found = mmap(NULL, size + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(found, 0xFF, size);
    allocations[allocation_count++] = (Allocation){(uint64_t)found, size, 1};
    used += size;
    *address = (CUdeviceptr)found;
  }
  LEAVE;
}
F(cuMemFree)(CUdeviceptr address) {
  ENTER(OTHER_CALL)
  if (!status) status = unsafe("cuMemFree");
  Allocation *found = status ? NULL : at(address, 1);
  if (!status && (!found || found->address != address))
    status = refused(CUDA_ERROR_INVALID_VALUE, "%#llx is not the start of a live allocation", address);
  if (!status) {
    drain();
    found->live = 0;
    used -= found->size;
    mmap((void *)address, found->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  }
  LEAVE;
}
F(cuMemGetInfo)(size_t *available, size_t *total) {
  ENTER(OTHER_CALL)
  *total = capacity();
  *available = *total - used;
  LEAVE;
}
F(cuMemcpyHtoDAsync)(CUdeviceptr to, const void *from, size_t size, CUstream stream) {
  ENTER(OTHER_CALL)
  if (!status) status = within("a copy to the device", to, size);
  if (!status) {
    void *held = malloc(size); /* pageable memory is staged before the call returns */
    memcpy(held, from, size);
    status = send(stream, (Work){.kind = COPY_IN, .address = to, .size = size, .host = held});
  }
  LEAVE;
}
F(cuMemcpyDtoHAsync)(void *to, CUdeviceptr from, size_t size, CUstream stream) {
  ENTER(OTHER_CALL)
  if (!status) status = within("a copy from the device", from, size);
  if (!status) status = send(stream, (Work){.kind = COPY_OUT, .address = from, .size = size, .host = to});
  LEAVE;
}
F(cuMemsetD8Async)(CUdeviceptr to, unsigned char byte, size_t size, CUstream stream) {
  ENTER(OTHER_CALL)
  if (!status) status = within("a fill", to, size);
  if (!status) status = send(stream, (Work){.kind = FILL, .address = to, .size = size, .byte = byte});
  LEAVE;
}

/* --- code ------------------------------------------------------------------------------------------------ */

/* Parameters and threads from a section `.nv.info.KERNEL`: records of (format, attribute, value or size). */
static void described(Kernel *kernel, const unsigned char *info, size_t size) {
  for (size_t i = 0; i + 4 <= size;) {
    uint16_t length = info[i] == 4 ? (uint16_t)(info[i + 2] | info[i + 3] << 8) : 0;
    uint32_t word[3] = {0};
    memcpy(word, info + i + 4, length < 12 ? length : 12);
    if (info[i] == 4 && info[i + 1] == 0x17) { /* EIATTR_KPARAM_INFO: index, ordinal and offset, size */
      int ordinal = word[1] & 0xFFFF;
      if (ordinal < PARAMETERS) kernel->sizes[ordinal] = word[2] >> 18;
      if (kernel->count <= ordinal) kernel->count = ordinal + 1;
    } else if (info[i] == 4 && info[i + 1] == 0x05) { /* EIATTR_MAX_THREADS */
      kernel->threads = word[0] * word[1] * word[2];
    }
    i += 4 + length;
  }
}

typedef struct { int first, last, live; } Library; /* of kernels */

F(cuLibraryLoadData)(CUlibrary *library, const void *code, CUjit_option *a, void **b, unsigned c, CUlibraryOption *d,
                     void **e, unsigned f) {
  ENTER(OTHER_CALL)
  const Elf64_Ehdr *head = code;
  if (!status && (memcmp(head->e_ident, ELFMAG, SELFMAG) || head->e_machine != EM_CUDA))
    status = refused(CUDA_ERROR_INVALID_IMAGE, "the code is no cubin");
  unsigned sm = status ? 0 : head->e_flags >> 8 & 0xFF, own = setting("FAKE_CUDA_SM", 90);
  if (!status && (sm / 10 != own / 10 || sm > own))
    status = refused(CUDA_ERROR_NO_BINARY_FOR_GPU, "code for sm_%u on sm_%u", sm, own);
  if (!status) {
    Library *made = calloc(1, sizeof(Library));
    const Elf64_Shdr *sections = (const void *)((const char *)code + head->e_shoff);
    const char *names = (const char *)code + sections[head->e_shstrndx].sh_offset;
    made->first = kernel_count;
    for (int i = 0; i < head->e_shnum && kernel_count < KERNELS; i++) {
      const char *name = names + sections[i].sh_name;
      if (strncmp(name, ".nv.info.", 9)) continue;
      Kernel *kernel = &kernels[kernel_count++];
      *kernel = (Kernel){.threads = 1024, .dynamic = STATIC_SHARED};
      snprintf(kernel->name, NAME, "%s", name + 9);
      described(kernel, (const unsigned char *)code + sections[i].sh_offset, sections[i].sh_size);
      for (int j = 0; j < head->e_shnum; j++) {
        const char *other = names + sections[j].sh_name;
        if (!strncmp(other, ".nv.shared.", 11) && !strcmp(other + 11, kernel->name))
          kernel->shared = sections[j].sh_size;
      }
      kernel->dynamic -= kernel->shared;
    }
    made->last = kernel_count;
    made->live = 1;
    *library = (CUlibrary)made;
  }
  LEAVE;
}
F(cuLibraryUnload)(CUlibrary library) { ((Library *)library)->live = 0; return CUDA_SUCCESS; }
F(cuLibraryGetKernel)(CUkernel *kernel, CUlibrary library, const char *name) {
  Library *from = (Library *)library;
  for (int i = from->first; i < from->last; i++)
    if (!strcmp(kernels[i].name, name)) {
      *kernel = (CUkernel)&kernels[i];
      return CUDA_SUCCESS;
    }
  return refused(CUDA_ERROR_NOT_FOUND, "no kernel %s in the code", name);
}
F(cuKernelGetLibrary)(CUlibrary *library, CUkernel kernel) { return CUDA_ERROR_NOT_FOUND; }
static Kernel *known(const void *handle) {
  const Kernel *kernel = handle;
  return kernel >= kernels && kernel < kernels + kernel_count ? (Kernel *)kernel : NULL;
}
F(cuKernelSetAttribute)(CUfunction_attribute attribute, int value, CUkernel handle, CUdevice device) {
  ENTER(OTHER_CALL)
  Kernel *kernel = known(handle);
  if (!status && !kernel) status = refused(CUDA_ERROR_INVALID_HANDLE, "cuKernelSetAttribute: no kernel");
  if (!status && attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
    if (value < 0 || value + kernel->shared > OPT_IN_SHARED)
      status = refused(CUDA_ERROR_INVALID_VALUE, "%d bytes of dynamic shared memory for %s", value, kernel->name);
    else kernel->dynamic = value;
  }
  LEAVE;
}
F(cuKernelGetAttribute)(int *value, CUfunction_attribute attribute, CUkernel kernel, CUdevice device) {
  *value = 0;
  return CUDA_SUCCESS;
}
F(cuKernelGetParamInfo)(CUkernel handle, size_t index, size_t *offset, size_t *size) {
  Kernel *kernel = known(handle);
  if (!kernel || index >= (size_t)kernel->count) return CUDA_ERROR_INVALID_VALUE;
  *offset = 0;
  for (size_t i = 0; i < index; i++) *offset += kernel->sizes[i];
  if (size) *size = kernel->sizes[index];
  return CUDA_SUCCESS;
}

/* Bytes that PyMem_Malloc was asked for, by the header of its debug hooks: size, 'm' or 'o', forbidden bytes. */
static long asked(const unsigned char *address) {
  uint64_t size = 0;
  for (int i = 0; i < 8; i++) size = size << 8 | address[i - 16];
  return address[-1] == 0xFD && (address[-8] == 'm' || address[-8] == 'o') ? (long)size : -1;
}

F(cuLaunchKernelEx)(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra) {
  ENTER(LAUNCH_CALL)
  Kernel *k = known(function);
  const CUlaunchConfig *c = config;
  if (!status && !k) status = refused(CUDA_ERROR_INVALID_HANDLE, "a launch of no kernel");
  uint64_t threads = (uint64_t)c->blockDimX * c->blockDimY * c->blockDimZ;
  if (!status && (!threads || threads > 1024 || c->blockDimZ > 64))
    status = refused(CUDA_ERROR_INVALID_VALUE, "kernel %s: %lu threads in a block", k->name, threads);
  if (!status && threads > k->threads)
    status = refused(CUDA_ERROR_INVALID_VALUE, "kernel %s: %lu threads, compiled for %u", k->name, threads, k->threads);
  if (!status && (!c->gridDimX || !c->gridDimY || !c->gridDimZ || c->gridDimX > 0x7FFFFFFF || c->gridDimY > 65535 ||
                  c->gridDimZ > 65535))
    status = refused(CUDA_ERROR_INVALID_VALUE, "kernel %s: a grid of %u, %u, %u", k->name, c->gridDimX, c->gridDimY,
                     c->gridDimZ);
  if (!status && c->sharedMemBytes > k->dynamic)
    status = refused(CUDA_ERROR_INVALID_VALUE, "kernel %s: %u bytes of dynamic shared memory, opted in to %u", k->name,
                     c->sharedMemBytes, k->dynamic);
  Work work = {.kind = LAUNCH, .kernel = k, .grid = {c->gridDimX, c->gridDimY, c->gridDimZ}};
  for (int i = 0; !status && i < k->count; i++) {
    long size = setting("FAKE_CUDA_SIZES", 0) ? asked(parameters[i]) : k->sizes[i];
    if (size != k->sizes[i])
      status = refused(CUDA_ERROR_INVALID_VALUE, "kernel %s: parameter %d has %ld bytes, compiled for %d", k->name, i,
                       size, k->sizes[i]);
    else memcpy(&work.values[i], parameters[i], k->sizes[i]);
  }
  if (!status) {
    launches++;
    status = send(c->hStream, work);
  }
  LEAVE;
}

/* --- streams, graphs, events ------------------------------------------------------------------------------ */

F(cuStreamCreateWithPriority)(CUstream *stream, unsigned flags, int priority) {
  ENTER(OTHER_CALL)
  if (!status) {
    Stream *made = calloc(1, sizeof(Stream));
    made->live = 1;
    streams[stream_count++ % 64] = made;
    if (stream_count > 64) status = CUDA_ERROR_OUT_OF_MEMORY;
    *stream = (CUstream)made;
  }
  LEAVE;
}
F(cuStreamCreate)(CUstream *stream, unsigned flags) { return fake_cuStreamCreateWithPriority(stream, flags, 0); }
F(cuStreamDestroy)(CUstream stream) { ((Stream *)stream)->live = 0; return CUDA_SUCCESS; }
F(cuStreamGetCtx)(CUstream stream, CUcontext *context) { *context = (CUcontext)&context_object; return CUDA_SUCCESS; }
F(cuStreamGetDevice)(CUstream stream, CUdevice *device) { *device = 0; return CUDA_SUCCESS; }
F(cuStreamGetFlags)(CUstream stream, unsigned *flags) { *flags = CU_STREAM_NON_BLOCKING; return CUDA_SUCCESS; }
F(cuStreamSynchronize)(CUstream stream) {
  ENTER(OTHER_CALL)
  if (!status) status = unsafe("cuStreamSynchronize");
  if (!status) status = drain();
  LEAVE;
}
F(cuStreamBeginCapture)(CUstream handle, CUstreamCaptureMode mode) {
  ENTER(OTHER_CALL)
  Stream *stream = (Stream *)handle;
  if (!status && stream->status) status = refused(CUDA_ERROR_INVALID_VALUE, "the stream is captured already");
  if (!status) {
    stream->status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    stream->graph = calloc(1, sizeof(Graph));
    stream->graph->live = 1;
  }
  LEAVE;
}
F(cuStreamEndCapture)(CUstream handle, CUgraph *graph) {
  ENTER(OTHER_CALL)
  Stream *stream = (Stream *)handle;
  *graph = NULL;
  if (!status && stream->status == CU_STREAM_CAPTURE_STATUS_NONE)
    status = refused(CUDA_ERROR_INVALID_VALUE, "the stream is not captured");
  if (!status && stream->status == CU_STREAM_CAPTURE_STATUS_INVALIDATED) status = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (!status) *graph = (CUgraph)stream->graph;
  stream->status = CU_STREAM_CAPTURE_STATUS_NONE;
  LEAVE;
}
F(cuStreamIsCapturing)(CUstream stream, CUstreamCaptureStatus *found) {
  *found = stream ? ((Stream *)stream)->status : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}
F(cuStreamGetCaptureInfo)(CUstream stream, CUstreamCaptureStatus *found, cuuint64_t *id, CUgraph *graph,
                          const CUgraphNode **nodes, const CUgraphEdgeData **edges, size_t *count) {
  *found = ((Stream *)stream)->status;
  if (id) *id = 1;
  if (graph) *graph = (CUgraph)((Stream *)stream)->graph;
  if (nodes) *nodes = NULL;
  if (edges) *edges = NULL;
  if (count) *count = 0;
  return CUDA_SUCCESS;
}
F(cuGraphInstantiateWithParams)(CUgraphExec *made, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *parameters) {
  ENTER(OTHER_CALL)
  Graph *from = (Graph *)graph;
  if (!status && !from->live) status = refused(CUDA_ERROR_INVALID_VALUE, "a graph that was destroyed");
  if (!status) {
    Graph *to = calloc(1, sizeof(Graph));
    to->live = 1;
    for (size_t i = 0; i < from->works.count; i++) push(&to->works, from->works.items[i]);
    parameters->result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
    *made = (CUgraphExec)to;
  }
  LEAVE;
}
F(cuGraphUpload)(CUgraphExec graph, CUstream stream) { ENTER(OTHER_CALL) LEAVE; }
F(cuGraphLaunch)(CUgraphExec handle, CUstream stream) {
  ENTER(GRAPH_CALL)
  Graph *graph = (Graph *)handle;
  if (!status && !graph->live) status = refused(CUDA_ERROR_INVALID_VALUE, "a replay of a graph that was destroyed");
  if (!status && stream && ((Stream *)stream)->status) status = unsafe("cuGraphLaunch");
  for (size_t i = 0; !status && i < graph->works.count; i++) enqueue(graph->works.items[i]);
  LEAVE;
}
F(cuGraphDestroy)(CUgraph graph) { ((Graph *)graph)->live = 0; return CUDA_SUCCESS; }
F(cuGraphExecDestroy)(CUgraphExec graph) { ((Graph *)graph)->live = 0; return CUDA_SUCCESS; }
F(cuGraphExecGetFlags)(CUgraphExec graph, cuuint64_t *flags) { *flags = 0; return CUDA_SUCCESS; }
F(cuUserObjectCreate)(CUuserObject *made, void *object, CUhostFn destroy, unsigned count, unsigned flags) {
  *made = malloc(8);
  return CUDA_SUCCESS;
}
F(cuUserObjectRetain)(CUuserObject object, unsigned count) { return CUDA_SUCCESS; }
F(cuUserObjectRelease)(CUuserObject object, unsigned count) { return CUDA_SUCCESS; }
F(cuGraphRetainUserObject)(CUgraph g, CUuserObject o, unsigned c, unsigned f) { return CUDA_SUCCESS; }
F(cuGraphReleaseUserObject)(CUgraph g, CUuserObject o, unsigned c) { return CUDA_SUCCESS; }

F(cuEventCreate)(CUevent *event, unsigned flags) {
  ENTER(OTHER_CALL)
  Event *made = calloc(1, sizeof(Event));
  made->timing = !(flags & CU_EVENT_DISABLE_TIMING);
  *event = (CUevent)made;
  LEAVE;
}
F(cuEventDestroy)(CUevent event) { return CUDA_SUCCESS; }
F(cuEventRecordWithFlags)(CUevent event, CUstream handle, unsigned flags) {
  ENTER(EVENT_CALL)
  Stream *stream = (Stream *)handle;
  int captured = stream && stream->status != CU_STREAM_CAPTURE_STATUS_NONE;
  if (!status && !!flags != captured)
    status = captured ? CUDA_SUCCESS : refused(CUDA_ERROR_INVALID_VALUE, "an external event outside of a capture");
  else if (!status) status = send(handle, (Work){.kind = EVENT, .event = (Event *)event});
  LEAVE;
}
F(cuEventRecord)(CUevent event, CUstream stream) { return fake_cuEventRecordWithFlags(event, stream, 0); }
F(cuEventSynchronize)(CUevent event) { return fake_cuStreamSynchronize(NULL); }
F(cuEventQuery)(CUevent event) {
  ENTER(0)
  Event *found = (Event *)event;
  if (!status && found->recorded && found->stamp > host_time) status = CUDA_ERROR_NOT_READY;
  LEAVE;
}
F(cuEventElapsedTime)(float *milliseconds, CUevent from, CUevent to) {
  ENTER(OTHER_CALL)
  Event *a = (Event *)from, *b = (Event *)to;
  if (!status && (!a->recorded || !b->recorded || !a->timing || !b->timing))
    status = refused(CUDA_ERROR_INVALID_HANDLE, "the time of an event that was not recorded, or has none");
  else if (!status && b->stamp > host_time) status = CUDA_ERROR_NOT_READY;
  else if (!status) *milliseconds = (float)((b->stamp - a->stamp) * 1e-3);
  LEAVE;
}

/* --- how the bindings find all this ----------------------------------------------------------------------- */

static CUresult entry(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

#define ROW(name) {#name, (void *)fake_##name}
static const struct { const char *name; void *function; } TABLE[] = {
    {"cuGetProcAddress", (void *)entry},
    ROW(cuInit), ROW(cuDriverGetVersion), ROW(cuDeviceGetCount), ROW(cuDeviceGet), ROW(cuDeviceGetName),
    ROW(cuDeviceGetUuid), ROW(cuDeviceGetAttribute), ROW(cuDevicePrimaryCtxRetain), ROW(cuDevicePrimaryCtxRelease),
    ROW(cuCtxSetCurrent), ROW(cuCtxGetCurrent), ROW(cuCtxPushCurrent), ROW(cuCtxPopCurrent), ROW(cuCtxGetDevice),
    ROW(cuCtxGetStreamPriorityRange), ROW(cuCtxSynchronize), ROW(cuGetErrorName), ROW(cuGetErrorString),
    ROW(cuMemAlloc), ROW(cuMemFree), ROW(cuMemGetInfo), ROW(cuMemcpyHtoDAsync), ROW(cuMemcpyDtoHAsync),
    ROW(cuMemsetD8Async), ROW(cuLibraryLoadData), ROW(cuLibraryUnload), ROW(cuLibraryGetKernel),
    ROW(cuKernelGetLibrary), ROW(cuKernelSetAttribute), ROW(cuKernelGetAttribute), ROW(cuKernelGetParamInfo),
    ROW(cuLaunchKernelEx), ROW(cuStreamCreateWithPriority), ROW(cuStreamCreate), ROW(cuStreamDestroy),
    ROW(cuStreamGetCtx), ROW(cuStreamGetDevice), ROW(cuStreamGetFlags), ROW(cuStreamSynchronize),
    ROW(cuStreamBeginCapture), ROW(cuStreamEndCapture), ROW(cuStreamIsCapturing), ROW(cuStreamGetCaptureInfo),
    ROW(cuGraphInstantiateWithParams), ROW(cuGraphUpload), ROW(cuGraphLaunch), ROW(cuGraphDestroy),
    ROW(cuGraphExecDestroy), ROW(cuGraphExecGetFlags), ROW(cuUserObjectCreate), ROW(cuUserObjectRetain),
    ROW(cuUserObjectRelease), ROW(cuGraphRetainUserObject), ROW(cuGraphReleaseUserObject), ROW(cuEventCreate),
    ROW(cuEventDestroy), ROW(cuEventRecord), ROW(cuEventRecordWithFlags), ROW(cuEventSynchronize), ROW(cuEventQuery),
    ROW(cuEventElapsedTime),
};

static CUresult entry(const char *name, void **function, int version, cuuint64_t flags,
                      CUdriverProcAddressQueryResult *found) {
  *function = NULL;
  for (size_t i = 0; i < sizeof TABLE / sizeof *TABLE; i++)
    if (!strcmp(TABLE[i].name, name)) *function = TABLE[i].function;
  if (found) *found = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
CUresult cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *found) {
  return entry(name, function, version, flags, found);
}
CUresult cuInit(unsigned flags) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int *version) { return fake_cuDriverGetVersion(version); }
