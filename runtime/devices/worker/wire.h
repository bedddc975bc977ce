/* Numbers and bytes between the worker and its parent: little-endian, on pipes.
 * "bytes" is a u32 count, then that many bytes. */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint32_t size;
    uint8_t *data;
} Bytes;

static FILE *in, *out;

static void put_u32(uint32_t v) { fwrite(&v, 4, 1, out); }

static void put_u64(uint64_t v) { fwrite(&v, 8, 1, out); }

static void put_bytes(const void *data, uint32_t size) {
    put_u32(size);
    fwrite(data, 1, size, out);
}

/* A failure is the reply: 1 and a message. The process ends, for its state is no longer known. */
static void fail(const char *format, ...) {
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    put_u32(1);
    put_bytes(text, (uint32_t)strlen(text));
    fflush(out);
    exit(1);
}

static void get(void *to, size_t size) {
    if (size && fread(to, 1, size, in) != size) fail("the request is cut short");
}

static uint32_t get_u32(void) {
    uint32_t v;
    get(&v, 4);
    return v;
}

static uint64_t get_u64(void) {
    uint64_t v;
    get(&v, 8);
    return v;
}

static void *space(size_t size) {
    void *p = malloc(size ? size : 1);
    if (!p) fail("no memory for %zu bytes", size);
    return p;
}

static Bytes get_bytes(void) {
    Bytes b = {get_u32(), NULL};
    b.data = space(b.size);
    get(b.data, b.size);
    return b;
}
