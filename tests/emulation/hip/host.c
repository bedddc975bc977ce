// HIP's runtime as far as `runtime/devices/rocm.py` calls it, on the host's memory: what AMD's own
// bindings for Python load here instead of libamdhip64.so. Kernels are run by a callback.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID_VALUE = 1, INVALID_FUNCTION = 98, NOT_FOUND = 500, CAPTURED = 900, IDLE = 903 };
enum { MOST_ARGUMENTS = 64, MOST_BYTES = 1024, MOST_NODES = 4096 };
enum { THREAD_LOCAL = 1, MULTIPROCESSORS = 63 };

typedef struct { char name[256]; int count; int sizes[MOST_ARGUMENTS]; } Function;
typedef struct { uint32_t x, y, z; } Dim3;
typedef struct { Dim3 block; void** extra; void* func; Dim3 grid; void** params; unsigned shared; } NodeParams;
typedef struct {
    Function* function;  // none: a copy
    void *to, *from;
    size_t size;
    unsigned groups, threads, shared;
    char arguments[MOST_BYTES];
} Node;
typedef struct { int count; Node* nodes[MOST_NODES]; } Graph;
typedef int (*Layout)(const char* kernel, int* sizes);
typedef void (*Launch)(const char* kernel, unsigned groups, unsigned threads, const void* arguments);

static Layout layout;
static Launch launch;
static int alive;
static Graph* capture;
static Node* last[1];

void stand_in_begin(Layout l, Launch r) { layout = l; launch = r; alive = 0; }
int stand_in_alive(void) { return alive; }

static void* made(size_t size) { ++alive; return calloc(1, size ? size : 1); }
static int gone(void* p) { --alive; free(p); return OK; }

static void run(const Node* n) {
    if (n->function) launch(n->function->name, n->groups, n->threads, n->arguments);
    else memcpy(n->to, n->from, n->size);
}
// At once, or into the graph that is captured, as a node after the one before.
static int done(const Node* n) {
    if (!capture) { run(n); return OK; }
    last[0] = made(sizeof *n);
    *last[0] = *n;
    capture->nodes[capture->count++] = last[0];
    return OK;
}
static size_t padded(size_t at, int size) { return (at + size - 1) / size * size; }
static int packed(Node* n, void** params, void** extra) {
    if (extra && !params) {
        size_t size = *(size_t*)extra[3];
        if (size > MOST_BYTES) return INVALID_VALUE;
        memcpy(n->arguments, extra[1], size);
        return OK;
    }
    if (!params || extra) return INVALID_VALUE;
    size_t at = 0;
    for (int i = 0; i < n->function->count; ++i) {
        int size = n->function->sizes[i];
        at = padded(at, size);
        memcpy(n->arguments + at, params[i], size);
        at += size;
    }
    return OK;
}
static int copied(void* to, void* from, size_t size) {
    Node n = {.to = to, .from = from, .size = size};
    return done(&n);
}

int hipInit(unsigned flags) { return OK; }
int hipSetDevice(int device) { return device ? 101 : OK; }
int hipGetDevicePropertiesR0600(void* facts, int device) { strcpy(facts, "Stand-in"); return OK; }
int hipDeviceGetAttribute(int* value, int kind, int device) {
    *value = 1;
    return kind == MULTIPROCESSORS ? OK : INVALID_VALUE;
}
int hipStreamCreate(void** stream) { *stream = made(1); return OK; }
int hipStreamDestroy(void* stream) { return gone(stream); }
int hipStreamSynchronize(void* stream) { return capture ? CAPTURED : OK; }
int hipMalloc(void** p, size_t size) { *p = made(size); memset(*p, 0x55, size); return capture ? CAPTURED : OK; }
int hipFree(void* p) { return gone(p); }
int hipHostMalloc(void** p, size_t size, unsigned flags) { *p = made(size); return capture ? CAPTURED : OK; }
int hipHostFree(void* p) { return gone(p); }
int hipMemsetAsync(void* to, int value, size_t size, void* stream) { memset(to, value, size); return OK; }
int hipMemcpyHtoDAsync(void* to, void* from, size_t size, void* stream) { return copied(to, from, size); }
int hipMemcpyDtoHAsync(void* to, void* from, size_t size, void* stream) { return copied(to, from, size); }
int hipMemcpy2DAsync(char* to, size_t tp, char* from, size_t fp, size_t width, size_t height, int kind, void* stream) {
    if (kind != 3 || tp < width || fp < width || !width) return INVALID_VALUE;
    for (size_t n = 0; n < height; ++n) memcpy(to + n * tp, from + n * fp, width);
    return OK;
}

int hipModuleLoadData(void** module, const char* image) {
    *module = strcpy(made(256), image);
    return OK;
}
int hipModuleUnload(void* module) { return gone(module); }
int hipModuleGetFunction(void** function, const char* module, const char* name) {
    static Function known[256];
    static int count;
    if (strcmp(module, name)) { *function = NULL; return NOT_FOUND; }
    Function* f = &known[count++ % 256];
    strcpy(f->name, name);
    f->count = layout(name, f->sizes);
    *function = f;
    return OK;
}
int hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Function* f, int threads, size_t shared) {
    *blocks = 2;
    return OK;
}
int hipModuleLaunchKernel(Function* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                          unsigned bz, unsigned shared, void* stream, void** params, void** extra) {
    if (!f || !gx || gy * gz * by * bz != 1) return INVALID_FUNCTION;
    Node n = {.function = f, .groups = gx, .threads = bx, .shared = shared};
    int status = packed(&n, params, extra);
    return status ? status : done(&n);
}

int hipStreamBeginCapture(void* stream, int mode) {
    if (mode != THREAD_LOCAL || capture) return INVALID_VALUE;
    capture = made(sizeof *capture);
    return OK;
}
int hipStreamGetCaptureInfo_v2(void* stream, int* status, unsigned long long* id, Graph** graph,
                               Node*** dependencies, size_t* count) {
    *status = capture != NULL;
    *id = 1;
    *graph = capture;
    if (!capture || !dependencies) return INVALID_VALUE;
    *dependencies = last;
    *count = capture->count > 0;
    return OK;
}
int hipStreamEndCapture(void* stream, Graph** graph) {
    *graph = capture;
    capture = NULL;
    return *graph ? OK : IDLE;
}
int hipGraphInstantiate(Graph** ready, const Graph* graph, void** error, char* log, size_t size) {
    *ready = made(sizeof **ready);
    **ready = *graph;
    return OK;
}
int hipGraphExecKernelNodeSetParams(Graph* ready, Node* node, const NodeParams* p) {
    int found = 0;
    for (int i = 0; i < ready->count; ++i) found |= ready->nodes[i] == node;
    if (!found || !node->function || p->func != node->function || p->shared != node->shared) return INVALID_VALUE;
    if (!p->grid.x || p->grid.y * p->grid.z * p->block.y * p->block.z != 1) return INVALID_VALUE;
    node->groups = p->grid.x;
    node->threads = p->block.x;
    return packed(node, p->params, p->extra);
}
int hipGraphLaunch(Graph* ready, void* stream) {
    for (int i = 0; i < ready->count; ++i) run(ready->nodes[i]);
    return OK;
}
int hipGraphExecDestroy(Graph* ready) { return gone(ready); }
int hipGraphDestroy(Graph* graph) {
    for (int i = 0; i < graph->count; ++i) gone(graph->nodes[i]);
    return gone(graph);
}
const char* hipGetErrorString(int status) { return status == CAPTURED ? "not while capturing" : "refused"; }
