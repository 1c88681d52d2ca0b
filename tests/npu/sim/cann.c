/*
 * A simulated CANN: just enough of the ascendcl C interface for a real torch_npu wheel to import, create
 * its streams and run a handful of operators on a machine without an NPU. Nothing seen here is a hardware
 * result: what only hardware can decide is a knob, read from the environment when it is first needed.
 *
 *   OVF_SIM_LOG           file that receives one line a call: "<ns> <tid> <function> <arguments>"
 *   OVF_SIM_SOC           soc name (Ascend910B2; Ascend910A for saturation only; Ascend950PR_9599)
 *   OVF_SIM_CANN          CANN version string; "!" makes the query fail
 *   OVF_SIM_DEVICES       how many devices there are (1)
 *   OVF_SIM_REGISTER      "device" (default) or "stream": what one float_status register belongs to
 *   OVF_SIM_SWITCH        "works" (default); "inert": accepted, and no register in INF_NAN mode, as on a
 *                         CANN that is too old; "fails": setting it returns an error
 *   OVF_SIM_NO_GET_SWITCH  set: aclrtGetStreamOverflowSwitch answers "feature not supported"
 *
 * Every device operation completes inside its call, so a stream has no queue: orders between streams are
 * those in which the calls arrive. Synchronisation calls do nothing but leave their line in the log.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SUCCESS 0
#define INVALID_PARAM 100000
#define CONTEXT_NULL 107002 /* the thread has chosen no device yet; torch_npu takes this answer for device 0 */
#define FEATURE_UNSUPPORTED 200000
#define FAILURE 500000
#define MAX_DEVICES 16
#define MAX_DIMS 8

/* ---------------------------------------------------------------- knobs and log */

static const char *knob(const char *name, const char *otherwise) {
  const char *value = getenv(name);
  return value != NULL && value[0] != '\0' ? value : otherwise;
}

static int knob_is(const char *name, const char *otherwise, const char *value) {
  return strcmp(knob(name, otherwise), value) == 0;
}

/* One write() on an O_APPEND descriptor a line: lines of several threads and processes never mix. */
__attribute__((format(printf, 2, 3))) static void trace(const char *function, const char *format, ...) {
  static int fd = -1;
  if (fd < 0) {
    /* Looked up until it is there: a process forked after the import sets it later. */
    const char *path = getenv("OVF_SIM_LOG");
    fd = path == NULL ? -1 : open(path, O_CREAT | O_APPEND | O_WRONLY | O_CLOEXEC, 0644);
    if (fd < 0) {
      return;
    }
  }
  char line[512];
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  int length = snprintf(line, sizeof line, "%lld %ld %s ", (long long)now.tv_sec * 1000000000LL + now.tv_nsec,
                        (long)syscall(SYS_gettid), function);
  va_list arguments;
  va_start(arguments, format);
  length += vsnprintf(line + length, sizeof line - (size_t)length - 1, format, arguments);
  va_end(arguments);
  if (length > (int)sizeof line - 2) {
    length = (int)sizeof line - 2;
  }
  line[length++] = '\n';
  ssize_t written = write(fd, line, (size_t)length);
  (void)written;
}

/* torch_npu's own log lines, so that a test can count its warnings. */
void aclAppLog(int level, const char *function, const char *file, uint32_t number, const char *format, ...) {
  (void)file, (void)number;
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  trace("aclAppLog", "level=%d %s: %s", level, function, text);
}

/* ---------------------------------------------------------------- devices and streams */

typedef struct Stream {
  int id;
  int device;
  uint32_t overflow_switch;
  int float_status;
} Stream;

static struct {
  int inf_nan;
  int float_status;
  int used;
} devices[MAX_DEVICES];
static _Thread_local int current_device = -1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int stream_count;
static int64_t sys_params[256];

static int soc_is(const char *prefix) { return strncmp(knob("OVF_SIM_SOC", "Ascend910B2"), prefix, strlen(prefix)) == 0; }

/* Soc names whose devices default to INF_NAN mode (the RFC's "non saturation" devices). */
static int soc_has_inf_nan(void) { return soc_is("Ascend910B") || soc_is("Ascend910_93") || soc_is("Ascend950"); }

static int device_count(void) {
  int count = atoi(knob("OVF_SIM_DEVICES", "1"));
  return count < 1 ? 1 : count > MAX_DEVICES ? MAX_DEVICES : count;
}

static int device_or_zero(void) { return current_device < 0 ? 0 : current_device; }

int aclInit(const char *config) {
  trace("aclInit", "%s", config == NULL ? "" : config);
  for (int device = 0; device < MAX_DEVICES; device++) {
    devices[device].inf_nan = soc_has_inf_nan();
  }
  return SUCCESS;
}
int aclFinalize(void) { return SUCCESS; }
int aclGetCannAttribute(int attribute, int32_t *value) {
  (void)attribute;
  *value = soc_has_inf_nan();
  return SUCCESS;
}
const char *aclrtGetSocName(void) { return knob("OVF_SIM_SOC", "Ascend910B2"); }
const char *aclGetRecentErrMsg(void) { return "simulated CANN"; }

/* The version string is the first member of the structure that the real call fills. */
int aclsysGetCANNVersion(int package, char *version) {
  (void)package;
  if (knob_is("OVF_SIM_CANN", "9.1.0", "!")) {
    return FAILURE;
  }
  snprintf(version, 128, "%s", knob("OVF_SIM_CANN", "9.1.0"));
  return SUCCESS;
}
int aclsysGetVersionStr(char *package, char *version) {
  (void)package;
  return aclsysGetCANNVersion(0, version);
}

int aclSetCompileopt(int option, const char *value) {
  (void)option, (void)value;
  return SUCCESS;
}
size_t aclGetCompileoptSize(int option) {
  (void)option;
  return 8;
}
int aclGetCompileopt(int option, char *value, size_t length) {
  (void)option;
  snprintf(value, length, "disable");
  return SUCCESS;
}

int aclrtGetDeviceCount(uint32_t *count) {
  *count = (uint32_t)device_count();
  return SUCCESS;
}
int aclrtSetDevice(int32_t device) {
  if (device < 0 || device >= device_count()) {
    return INVALID_PARAM;
  }
  current_device = device;
  devices[device].used = 1;
  return SUCCESS;
}
int aclrtGetPrimaryCtxState(int32_t device, uint32_t *flags, int32_t *active) {
  if (flags != NULL) {
    *flags = 0;
  }
  *active = device >= 0 && device < MAX_DEVICES && devices[device].used;
  return SUCCESS;
}
int aclrtGetDevice(int32_t *device) {
  if (current_device < 0) {
    return CONTEXT_NULL;
  }
  *device = current_device;
  return SUCCESS;
}
int aclrtResetDevice(int32_t device) {
  (void)device;
  return SUCCESS;
}
int aclrtGetCurrentContext(void **context) {
  *context = &devices[device_or_zero()];
  return current_device < 0 ? CONTEXT_NULL : SUCCESS;
}
int aclrtSetCurrentContext(void *context) {
  long device = (long)(((char *)context - (char *)devices) / (long)sizeof devices[0]);
  return aclrtSetDevice((int32_t)device);
}
int aclrtSetDeviceSatMode(int mode) {
  trace("aclrtSetDeviceSatMode", "device=%d mode=%d", device_or_zero(), mode);
  devices[device_or_zero()].inf_nan = mode;
  return SUCCESS;
}
int aclrtGetDeviceSatMode(int *mode) {
  *mode = devices[device_or_zero()].inf_nan;
  return SUCCESS;
}
int aclrtSetOpExecuteTimeOutV2(uint64_t timeout, uint64_t *actual) {
  *actual = timeout;
  return SUCCESS;
}
int aclrtSetSysParamOpt(int option, int64_t value) {
  sys_params[option & 255] = value;
  return SUCCESS;
}
int aclrtGetSysParamOpt(int option, int64_t *value) {
  *value = sys_params[option & 255];
  return SUCCESS;
}
int aclrtCtxSetSysParamOpt(int option, int64_t value) { return aclrtSetSysParamOpt(option, value); }
int aclrtCtxGetSysParamOpt(int option, int64_t *value) { return aclrtGetSysParamOpt(option, value); }
int aclrtGetMemInfo(int attribute, size_t *available, size_t *total) {
  (void)attribute;
  *available = (size_t)8 << 30;
  *total = (size_t)16 << 30;
  return SUCCESS;
}
int HcclSetConfig(int config, ...) {
  (void)config;
  return SUCCESS;
}

static int create_stream(void **stream, const char *function) {
  Stream *created = calloc(1, sizeof *created);
  pthread_mutex_lock(&lock);
  created->id = stream_count++;
  pthread_mutex_unlock(&lock);
  created->device = device_or_zero();
  *stream = created;
  trace(function, "stream=%d device=%d pointer=%p", created->id, created->device, (void *)created);
  return SUCCESS;
}
int aclrtCreateStreamWithConfig(void **stream, uint32_t priority, uint32_t flag) {
  (void)priority, (void)flag;
  return create_stream(stream, "aclrtCreateStreamWithConfig");
}
int aclrtCreateStream(void **stream) { return create_stream(stream, "aclrtCreateStream"); }
/* Streams are never freed: a test may read the switch of one after torch_npu is done with it. */
int aclrtDestroyStream(void *stream) {
  (void)stream;
  return SUCCESS;
}
int aclrtDestroyStreamForce(void *stream) {
  (void)stream;
  return SUCCESS;
}
int aclrtSetStreamFailureMode(void *stream, uint64_t mode) {
  (void)stream, (void)mode;
  return SUCCESS;
}
int aclrtGetStreamId(void *stream, int32_t *id) {
  *id = ((Stream *)stream)->id;
  return SUCCESS;
}
int aclrtSetStreamOverflowSwitch(void *stream, uint32_t flag) {
  if (knob_is("OVF_SIM_SWITCH", "works", "fails") || stream == NULL) {
    return FAILURE;
  }
  Stream *target = stream;
  trace("aclrtSetStreamOverflowSwitch", "stream=%d device=%d flag=%u", target->id, target->device, flag);
  target->overflow_switch = flag;
  return SUCCESS;
}
int aclrtGetStreamOverflowSwitch(void *stream, uint32_t *flag) {
  if (getenv("OVF_SIM_NO_GET_SWITCH") != NULL) {
    return FEATURE_UNSUPPORTED;
  }
  *flag = ((Stream *)stream)->overflow_switch;
  return SUCCESS;
}

/* ---------------------------------------------------------------- synchronisation: only a line in the log */

static int stream_number(const void *stream) { return stream == NULL ? -1 : ((const Stream *)stream)->id; }

int aclrtSynchronizeStream(void *stream) {
  trace("aclrtSynchronizeStream", "stream=%d", stream_number(stream));
  return SUCCESS;
}
int aclrtSynchronizeStreamWithTimeout(void *stream, int32_t timeout) {
  (void)timeout;
  trace("aclrtSynchronizeStreamWithTimeout", "stream=%d", stream_number(stream));
  return SUCCESS;
}
int aclrtSynchronizeDevice(void) {
  trace("aclrtSynchronizeDevice", "device=%d", device_or_zero());
  return SUCCESS;
}
int aclrtSynchronizeDeviceWithTimeout(int32_t timeout) {
  (void)timeout;
  return aclrtSynchronizeDevice();
}
int aclrtSynchronizeEvent(void *event) {
  trace("aclrtSynchronizeEvent", "event=%p", event);
  return SUCCESS;
}
int aclrtStreamWaitEvent(void *stream, void *event) {
  trace("aclrtStreamWaitEvent", "stream=%d event=%p", stream_number(stream), event);
  return SUCCESS;
}
int aclrtRecordEvent(void *event, void *stream) {
  trace("aclrtRecordEvent", "stream=%d event=%p", stream_number(stream), event);
  return SUCCESS;
}
int aclrtQueryEventStatus(void *event, int *status) {
  (void)event;
  *status = 1;
  return SUCCESS;
}
static int create_event(void **event) {
  *event = calloc(1, 16);
  return SUCCESS;
}
int aclrtCreateEventExWithFlag(void **event, uint32_t flag) {
  (void)flag;
  return create_event(event);
}
int aclrtCreateEventWithFlag(void **event, uint32_t flag) {
  (void)flag;
  return create_event(event);
}
int aclrtEventElapsedTime(float *milliseconds, void *begin, void *end) {
  (void)begin, (void)end;
  *milliseconds = 0.0F;
  return SUCCESS;
}
int aclrtPeekAtLastError(int level) {
  (void)level;
  return SUCCESS;
}
int aclrtGetLastError(int level) {
  (void)level;
  return SUCCESS;
}
int aclmdlRICaptureGetInfo(void *stream, int *status, void **model) {
  (void)stream;
  *status = 0;
  *model = NULL;
  return SUCCESS;
}

/* ---------------------------------------------------------------- memory: the host's */

static int allocate(void **pointer, size_t size) {
  *pointer = aligned_alloc(512, (size + 511) / 512 * 512 + 512);
  return *pointer == NULL ? FAILURE : SUCCESS;
}
int aclrtMalloc(void **pointer, size_t size, int policy) {
  (void)policy;
  return allocate(pointer, size);
}
int aclrtMallocAlign32(void **pointer, size_t size, int policy) {
  (void)policy;
  return allocate(pointer, size);
}
int aclrtMallocHost(void **pointer, size_t size) { return allocate(pointer, size); }
int aclrtFree(void *pointer) {
  free(pointer);
  return SUCCESS;
}
int aclrtFreeHost(void *pointer) { return aclrtFree(pointer); }
int aclrtMemcpy(void *to, size_t room, const void *from, size_t count, int kind) {
  (void)room;
  trace("aclrtMemcpy", "bytes=%zu kind=%d", count, kind);
  memmove(to, from, count);
  return SUCCESS;
}
int aclrtMemcpyAsync(void *to, size_t room, const void *from, size_t count, int kind, void *stream) {
  (void)room;
  trace("aclrtMemcpyAsync", "bytes=%zu kind=%d stream=%d", count, kind, stream_number(stream));
  memmove(to, from, count);
  return SUCCESS;
}
int aclrtMemset(void *pointer, size_t room, int value, size_t count) {
  (void)room;
  memset(pointer, value, count);
  return SUCCESS;
}
int aclrtMemsetAsync(void *pointer, size_t room, int value, size_t count, void *stream) {
  (void)stream;
  return aclrtMemset(pointer, room, value, count);
}

/* ---------------------------------------------------------------- the float_status register */

/* Whether an overflow on this stream reaches the register: in saturation mode the switch is enough, in
 * INF_NAN mode the runtime must know the switch there too (CANN >= 9.1.0; the "inert" knob is one that does not). */
static int register_is_live(const Stream *stream) {
  if (stream->overflow_switch == 0) {
    return 0;
  }
  return !devices[stream->device].inf_nan || !knob_is("OVF_SIM_SWITCH", "works", "inert");
}

static int *register_of(Stream *stream) {
  return knob_is("OVF_SIM_REGISTER", "device", "stream") ? &stream->float_status : &devices[stream->device].float_status;
}

/* ---------------------------------------------------------------- aclop operators: the float_status ones */

typedef struct {
  void *pointer;
  size_t size;
} Buffer;

void *aclCreateDataBuffer(void *pointer, size_t size) {
  Buffer *buffer = malloc(sizeof *buffer);
  *buffer = (Buffer){pointer, size};
  return buffer;
}
int aclDestroyDataBuffer(const void *buffer) {
  free((void *)buffer);
  return SUCCESS;
}
void *aclGetDataBufferAddr(const void *buffer) { return ((const Buffer *)buffer)->pointer; }
void *aclCreateTensorDesc(int type, int count, const int64_t *dims, int format) {
  (void)type, (void)count, (void)dims, (void)format;
  return calloc(1, 64);
}
void aclDestroyTensorDesc(const void *description) { free((void *)description); }
void *aclopCreateAttr(void) { return calloc(1, 64); }
void aclopDestroyAttr(const void *attribute) { free((void *)attribute); }

int aclopCompileAndExecute(const char *type, int input_count, const void *const input_descriptions[],
                           const void *const inputs[], int output_count, const void *const output_descriptions[],
                           void *const outputs[], const void *attribute, int engine, int compile, const char *path,
                           void *stream) {
  (void)input_descriptions, (void)output_descriptions, (void)attribute, (void)engine, (void)compile, (void)path;
  Stream *target = stream;
  trace("aclopCompileAndExecute", "op=%s stream=%d", type, target->id);
  if (soc_is("Ascend950")) {
    return FEATURE_UNSUPPORTED; /* aclnn only: these operators do not exist there */
  }
  pthread_mutex_lock(&lock);
  int status = *register_of(target);
  int result = SUCCESS;
  if (strcmp(type, "NPUGetFloatStatusV2") == 0 && output_count == 1) {
    int32_t *out = ((const Buffer *)outputs[0])->pointer;
    memset(out, 0, 8 * sizeof *out);
    out[0] = status;
  } else if (strcmp(type, "NPUGetFloatStatus") == 0 && input_count == 1) {
    float *out = ((const Buffer *)inputs[0])->pointer; /* the old operator writes into its input */
    out[0] = (float)status;
  } else if (strcmp(type, "NPUClearFloatStatusV2") == 0 || strcmp(type, "NPUClearFloatStatus") == 0) {
    *register_of(target) = 0;
  } else {
    fprintf(stderr, "simulated CANN: aclop operator %s is not simulated\n", type);
    result = FEATURE_UNSUPPORTED;
  }
  pthread_mutex_unlock(&lock);
  return result;
}

/* ---------------------------------------------------------------- aclnn tensors */

enum { FLOAT = 0, FLOAT16 = 1, INT8 = 2, INT32 = 3, UINT8 = 4, INT16 = 6, INT64 = 9, DOUBLE = 11, BOOL = 12, BF16 = 27 };

typedef struct {
  int type;
  uint64_t count;
  int64_t dims[MAX_DIMS], strides[MAX_DIMS], offset;
  void *data;
} Tensor;

void *aclCreateTensor(const int64_t *dims, uint64_t count, int type, const int64_t *strides, int64_t offset, int format,
                      const int64_t *storage, uint64_t storage_count, void *data) {
  (void)format, (void)storage, (void)storage_count;
  Tensor *tensor = calloc(1, sizeof *tensor);
  tensor->type = type;
  tensor->count = count > MAX_DIMS ? MAX_DIMS : count;
  for (uint64_t dim = 0; dim < tensor->count; dim++) {
    tensor->dims[dim] = dims[dim];
    tensor->strides[dim] = strides[dim];
  }
  tensor->offset = offset;
  tensor->data = data;
  return tensor;
}
int aclDestroyTensor(const void *tensor) {
  free((void *)tensor);
  return SUCCESS;
}
typedef struct {
  int type;
  double value;
} Scalar;
static double load(const void *data, int64_t index, int type);
void *aclCreateScalar(void *value, int type) {
  Scalar *scalar = malloc(sizeof *scalar);
  *scalar = (Scalar){type, load(value, 0, type)};
  return scalar;
}
int aclDestroyScalar(const void *scalar) {
  free((void *)scalar);
  return SUCCESS;
}
void *aclCreateIntArray(const int64_t *values, uint64_t count) {
  int64_t *array = calloc(count + 1, sizeof *array);
  array[0] = (int64_t)count;
  memcpy(array + 1, values, count * sizeof *array);
  return array;
}
int aclDestroyIntArray(const void *array) {
  free((void *)array);
  return SUCCESS;
}

static float half_to_float(uint16_t half) {
  int sign = half >> 15, exponent = (half >> 10) & 31, fraction = half & 1023;
  float value;
  if (exponent == 31) {
    value = fraction != 0 ? NAN : INFINITY;
  } else if (exponent == 0) {
    value = ldexpf((float)fraction, -24);
  } else {
    value = ldexpf((float)(1024 + fraction), exponent - 25);
  }
  return sign ? -value : value;
}
/* Round to nearest even through the spacing of halves at this magnitude. */
static uint16_t float_to_half(double value) {
  uint16_t sign = signbit(value) ? 0x8000U : 0U;
  double magnitude = fabs(value);
  if (isnan(value)) {
    return 0x7e00U;
  }
  if (magnitude >= 65520.0) {
    return (uint16_t)(sign | 0x7c00U);
  }
  int exponent = magnitude > 0 ? ilogb(magnitude) : -14;
  exponent = exponent < -14 ? -14 : exponent;
  int steps = (int)nearbyint(ldexp(magnitude, 10 - exponent));
  return (uint16_t)(sign | (exponent == -14 && steps < 1024 ? steps : ((exponent + 15) << 10) + (steps - 1024)));
}

static double load(const void *data, int64_t index, int type) {
  switch (type) {
    case FLOAT: return ((const float *)data)[index];
    case FLOAT16: return half_to_float(((const uint16_t *)data)[index]);
    case DOUBLE: return ((const double *)data)[index];
    case INT8: return ((const int8_t *)data)[index];
    case UINT8: case BOOL: return ((const uint8_t *)data)[index];
    case INT16: return ((const int16_t *)data)[index];
    case INT32: return ((const int32_t *)data)[index];
    case INT64: return (double)((const int64_t *)data)[index];
    case BF16: {
      uint32_t bits = (uint32_t)((const uint16_t *)data)[index] << 16;
      float value;
      memcpy(&value, &bits, sizeof value);
      return value;
    }
    default: return 0.0;
  }
}

static double largest(int type) { return type == FLOAT16 ? 65504.0 : type == DOUBLE ? 1.7976931348623157e308 : 3.4028234663852886e38; }

/* Stores one element; answers whether it is not finite in its own type. Saturation clamps, INF_NAN keeps. */
static int store(void *data, int64_t index, int type, double value, int inf_nan) {
  int overflows = 0;
  if (type == FLOAT16) {
    overflows = !isfinite(half_to_float(float_to_half(value)));
  } else if (type == FLOAT || type == BF16) {
    overflows = !isfinite((float)value);
  }
  if (overflows && !inf_nan) {
    value = isnan(value) ? 0.0 : copysign(largest(type), value);
  }
  switch (type) {
    case FLOAT: ((float *)data)[index] = (float)value; break;
    case FLOAT16: ((uint16_t *)data)[index] = float_to_half(value); break;
    case DOUBLE: ((double *)data)[index] = value; break;
    case INT8: case UINT8: case BOOL: ((uint8_t *)data)[index] = (uint8_t)(int64_t)value; break;
    case INT16: ((int16_t *)data)[index] = (int16_t)value; break;
    case INT32: ((int32_t *)data)[index] = (int32_t)value; break;
    case INT64: ((int64_t *)data)[index] = (int64_t)value; break;
    case BF16: {
      float single = (float)value;
      uint32_t bits;
      memcpy(&bits, &single, sizeof bits);
      ((uint16_t *)data)[index] = (uint16_t)((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
      break;
    }
    default: break;
  }
  return overflows;
}

static int64_t element_count(const Tensor *tensor) {
  int64_t count = 1;
  for (uint64_t dim = 0; dim < tensor->count; dim++) {
    count *= tensor->dims[dim];
  }
  return count;
}
/* Where the n-th element of `shape` lies in `tensor`, whose dimensions of size 1 are broadcast. */
static int64_t offset_of(const Tensor *tensor, const Tensor *shape, int64_t n) {
  int64_t offset = tensor->offset;
  for (uint64_t back = 1; back <= shape->count; back++) {
    int64_t size = shape->dims[shape->count - back];
    int64_t position = n % size;
    n /= size;
    if (back <= tensor->count && tensor->dims[tensor->count - back] != 1) {
      offset += position * tensor->strides[tensor->count - back];
    }
  }
  return offset;
}
static double element(const Tensor *tensor, const Tensor *shape, int64_t n) {
  return load(tensor->data, offset_of(tensor, shape, n), tensor->type);
}

/* ---------------------------------------------------------------- aclnn operators */

enum Kind { ADD, SUB, MUL, ADDS, MULS, COPY, FILL, SUM, MATMUL };
typedef struct {
  enum Kind kind;
  const Tensor *self, *other;
  Tensor *out;
  double number;
} Executor;

static int prepare(void **executor, uint64_t *workspace, Executor plan) {
  *executor = malloc(sizeof plan);
  *(Executor *)*executor = plan;
  *workspace = 0;
  return SUCCESS;
}

/* The register is set when finite operands give a result that is not finite; passing an Inf or NaN on sets nothing. */
static int execute(const char *name, Executor *plan, Stream *stream) {
  trace(name, "stream=%d device=%d", stream->id, stream->device);
  int inf_nan = devices[stream->device].inf_nan, overflow = 0;
  Tensor *out = plan->out;
  if (plan->kind == SUM) {
    double total = 0.0;
    int finite = 1;
    for (int64_t n = 0; n < element_count(plan->self); n++) {
      double value = element(plan->self, plan->self, n);
      finite = finite && isfinite(value);
      total += value;
    }
    overflow = store(out->data, out->offset, out->type, total, inf_nan) && finite;
  } else if (plan->kind == MATMUL) {
    int64_t depth = plan->self->dims[1];
    for (int64_t row = 0; row < out->dims[0]; row++) {
      for (int64_t column = 0; column < out->dims[1]; column++) {
        double total = 0.0;
        int finite = 1;
        for (int64_t k = 0; k < depth; k++) {
          double a = load(plan->self->data, plan->self->offset + row * plan->self->strides[0] + k * plan->self->strides[1], plan->self->type);
          double b = load(plan->other->data, plan->other->offset + k * plan->other->strides[0] + column * plan->other->strides[1], plan->other->type);
          finite = finite && isfinite(a) && isfinite(b);
          total += a * b;
        }
        int64_t at = out->offset + row * out->strides[0] + column * out->strides[1];
        overflow |= store(out->data, at, out->type, total, inf_nan) && finite;
      }
    }
  } else {
    for (int64_t n = 0; n < element_count(out); n++) {
      double a = plan->self != NULL ? element(plan->self, out, n) : plan->number;
      double b = plan->other != NULL ? element(plan->other, out, n) : plan->number;
      double value = a;
      switch (plan->kind) {
        case ADD: value = a + plan->number * b; break;
        case SUB: value = a - plan->number * b; break;
        case ADDS: value = a + b; break;
        case MUL: case MULS: value = a * b; break;
        default: break;
      }
      int not_finite = store(out->data, offset_of(out, out, n), out->type, value, inf_nan);
      overflow |= not_finite && plan->kind != COPY && plan->kind != FILL && isfinite(a) && isfinite(b);
    }
  }
  if (overflow && register_is_live(stream)) {
    pthread_mutex_lock(&lock);
    *register_of(stream) = 1;
    pthread_mutex_unlock(&lock);
    trace("float_status", "stream=%d device=%d set", stream->id, stream->device);
  }
  free(plan);
  return SUCCESS;
}

#define OPERATOR(name, parameters, ...)                                          \
  int name##GetWorkspaceSize parameters { return prepare(executor, workspace, (Executor){__VA_ARGS__}); } \
  int name(void *area, uint64_t size, void *executor, void *stream) {            \
    (void)area, (void)size;                                                      \
    return execute(#name, executor, stream);                                     \
  }
#define NUMBER(scalar) ((const Scalar *)(scalar))->value

OPERATOR(aclnnAdd, (const void *self, const void *other, const void *alpha, void *out, uint64_t *workspace, void **executor),
         ADD, self, other, out, NUMBER(alpha))
OPERATOR(aclnnSub, (const void *self, const void *other, const void *alpha, void *out, uint64_t *workspace, void **executor),
         SUB, self, other, out, NUMBER(alpha))
OPERATOR(aclnnInplaceAdd, (void *self, const void *other, const void *alpha, uint64_t *workspace, void **executor),
         ADD, self, other, self, NUMBER(alpha))
OPERATOR(aclnnMul, (const void *self, const void *other, void *out, uint64_t *workspace, void **executor),
         MUL, self, other, out, 0.0)
OPERATOR(aclnnInplaceMul, (void *self, const void *other, uint64_t *workspace, void **executor),
         MUL, self, other, self, 0.0)
OPERATOR(aclnnAdds, (const void *self, const void *other, const void *alpha, void *out, uint64_t *workspace, void **executor),
         ADDS, self, NULL, out, NUMBER(other) * NUMBER(alpha))
OPERATOR(aclnnInplaceAdds, (void *self, const void *other, const void *alpha, uint64_t *workspace, void **executor),
         ADDS, self, NULL, self, NUMBER(other) * NUMBER(alpha))
OPERATOR(aclnnMuls, (const void *self, const void *other, void *out, uint64_t *workspace, void **executor),
         MULS, self, NULL, out, NUMBER(other))
OPERATOR(aclnnInplaceMuls, (void *self, const void *other, uint64_t *workspace, void **executor),
         MULS, self, NULL, self, NUMBER(other))
OPERATOR(aclnnCast, (const void *self, int type, void *out, uint64_t *workspace, void **executor),
         COPY, self, NULL, out, (double)type)
OPERATOR(aclnnInplaceCopy, (void *self, const void *source, uint64_t *workspace, void **executor),
         COPY, source, NULL, self, 0.0)
OPERATOR(aclnnInplaceZero, (void *self, uint64_t *workspace, void **executor), FILL, NULL, NULL, self, 0.0)
OPERATOR(aclnnInplaceOne, (void *self, uint64_t *workspace, void **executor), FILL, NULL, NULL, self, 1.0)
OPERATOR(aclnnInplaceFillScalar, (void *self, const void *value, uint64_t *workspace, void **executor),
         FILL, NULL, NULL, self, NUMBER(value))
OPERATOR(aclnnReduceSum, (const void *self, const void *dims, int keep, int type, void *out, uint64_t *workspace, void **executor),
         SUM, self, NULL, out, (double)((dims != NULL) + keep + type))
OPERATOR(aclnnMm, (const void *self, const void *other, void *out, int8_t cube, uint64_t *workspace, void **executor),
         MATMUL, self, other, out, (double)cube)
OPERATOR(aclnnMatmul, (const void *self, const void *other, void *out, int8_t cube, uint64_t *workspace, void **executor),
         MATMUL, self, other, out, (double)cube)
