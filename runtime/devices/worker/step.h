/* Steps that are recorded once and run again and again: buffers, kernels, command buffers. */
#define MAX_BUFFERS 256
#define MAX_KERNELS 1024
#define MAX_RECORDED 32

typedef struct {
    Bindings bindings;
    Program program;
    uint32_t push, subgroup, bound;
    Bytes spirv;
} Kernel;

typedef struct {
    uint32_t buffer;
    uint64_t at, size;
} Span;

static Buffer buffers[MAX_BUFFERS];
static Kernel kernels[MAX_KERNELS];
static VkCommandBuffer recorded[MAX_RECORDED];
static uint32_t buffer_count, kernel_count, recorded_count;

static Span get_span(void) {
    Span s;
    s.buffer = get_u32();
    s.at = get_u64();
    s.size = get_u64();
    if (s.buffer >= buffer_count || s.at > buffers[s.buffer].size ||
        s.size > buffers[s.buffer].size - s.at)
        fail("bytes %llu to %llu of buffer %u do not exist", (unsigned long long)s.at,
             (unsigned long long)(s.at + s.size), s.buffer);
    return s;
}

/* Bytes between a buffer and a pipe; through the passage where the host does not see the buffer. */
static void move_bytes(Span s, int write) {
    Buffer b = buffers[s.buffer];
    if (b.mapped) {
        if (write) get(b.mapped + s.at, s.size);
        else fwrite(b.mapped + s.at, 1, s.size, out);
        return;
    }
    Buffer through = passage();
    while (s.size) {
        uint64_t part = s.size < TRANSFER ? s.size : TRANSFER;
        VkBufferCopy region = {write ? 0 : s.at, write ? s.at : 0, part};
        if (write) get(through.mapped, part);
        VkCommandBuffer c = begin_commands(VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT);
        vkCmdCopyBuffer(c, write ? through.buffer : b.buffer, write ? b.buffer : through.buffer,
                        1, &region);
        barrier(c);
        run_once(c);
        if (!write) fwrite(through.mapped, 1, part, out);
        s.at += part;
        s.size -= part;
    }
}

static void answer_buffer(void) {
    uint64_t size = get_u64();
    uint32_t hidden = get_u32();
    if (buffer_count == MAX_BUFFERS) fail("more than %d buffers", MAX_BUFFERS);
    Buffer made = make_buffer(size, hidden != 0);
    buffers[buffer_count] = made;
    VkCommandBuffer c = begin_commands(VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT);
    vkCmdFillBuffer(c, made.buffer, 0, VK_WHOLE_SIZE, 0);
    barrier(c);
    run_once(c);
    put_u32(0);
    put_u32(buffer_count++);
}

/* The program of an earlier kernel of the same code, which binds as many buffers elsewhere. */
static const Kernel *same_program(Bytes spirv, uint32_t push, uint32_t subgroup, uint32_t n) {
    for (uint32_t i = 0; i < kernel_count; i++) {
        const Kernel *k = &kernels[i];
        if (k->push == push && k->subgroup == subgroup && k->bound == n &&
            k->spirv.size == spirv.size && !memcmp(k->spirv.data, spirv.data, spirv.size))
            return k;
    }
    return NULL;
}

static void answer_kernel(void) {
    Bytes spirv = get_bytes();
    uint32_t push = get_u32(), subgroup = get_u32(), uniforms = get_u32(), n = get_u32();
    VkDescriptorBufferInfo places[MAX_BINDINGS];
    if (n > MAX_BINDINGS || uniforms > n) fail("%u bindings, %d at most", n, MAX_BINDINGS);
    if (n - uniforms > facts.limits.maxPerStageDescriptorStorageBuffers)
        fail("%u buffers of one kernel; %s takes %u", n - uniforms, facts.deviceName,
             facts.limits.maxPerStageDescriptorStorageBuffers);
    if (kernel_count == MAX_KERNELS) fail("more than %d kernels", MAX_KERNELS);
    for (uint32_t i = 0; i < n; i++) {
        Span s = get_span();
        if (s.at % facts.limits.minStorageBufferOffsetAlignment)
            fail("%s binds at multiples of %u bytes", facts.deviceName,
                 (unsigned)facts.limits.minStorageBufferOffsetAlignment);
        places[i] = (VkDescriptorBufferInfo){buffers[s.buffer].buffer, s.at, s.size};
    }
    Kernel *k = &kernels[kernel_count];
    const Kernel *same = same_program(spirv, push, subgroup, n);
    *k = (Kernel){.push = push, .subgroup = subgroup, .bound = n, .spirv = spirv};
    k->bindings = bind_buffers(places, n, uniforms);
    k->program = same ? same->program
                      : make_program(spirv, NULL, push, subgroup, k->bindings.layout);
    if (same) {
        free(spirv.data);
        k->spirv = same->spirv;
    }
    put_u32(0);
    put_u32(kernel_count++);
}

static void answer_record(void) {
    uint32_t n = get_u32();
    if (recorded_count == MAX_RECORDED) fail("more than %d recorded steps", MAX_RECORDED);
    VkCommandBuffer c = begin_commands(0);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t which = get_u32(), groups = get_u32(), push = get_u32();
        if (which >= kernel_count || !groups) fail("launch %u of kernel %u", i, which);
        const Kernel *k = &kernels[which];
        VkPipelineLayout layout = k->program.layout;
        vkCmdBindPipeline(c, VK_PIPELINE_BIND_POINT_COMPUTE, k->program.pipeline);
        vkCmdBindDescriptorSets(c, VK_PIPELINE_BIND_POINT_COMPUTE, layout, 0, 1,
                                &k->bindings.set, 0, NULL);
        if (k->push)
            vkCmdPushConstants(c, layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, 4, &push);
        vkCmdDispatch(c, groups, 1, 1);
        barrier(c);
    }
    check(vkEndCommandBuffer(c), "vkEndCommandBuffer");
    recorded[recorded_count++] = c;
    put_u32(0);
    put_u32(recorded_count);
}

/* Writes, a recorded step (by its number, from 1 on) if one is asked for, reads. */
static void answer_step(void) {
    uint32_t writes = get_u32();
    for (uint32_t i = 0; i < writes; i++) move_bytes(get_span(), 1);
    uint32_t run = get_u32(), reads = get_u32();
    Span *wanted = space(reads * sizeof *wanted);
    for (uint32_t i = 0; i < reads; i++) wanted[i] = get_span();
    if (run > recorded_count) fail("there is no recorded step %u", run);
    if (run) run_commands(recorded[run - 1]);
    put_u32(0);
    for (uint32_t i = 0; i < reads; i++) move_bytes(wanted[i], 0);
    free(wanted);
}

/* Copies inside buffers: `count` parts of one size, `stride` bytes apart. */
static void answer_copy(void) {
    uint32_t n = get_u32();
    VkCommandBuffer c = begin_commands(VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t which = get_u32();
        uint64_t from = get_u64(), to = get_u64(), size = get_u64(), stride = get_u64();
        uint32_t count = get_u32();
        if (which >= buffer_count) fail("there is no buffer %u", which);
        uint64_t far = (from > to ? from : to) + size;
        uint64_t have = buffers[which].size;
        if (far > have || (count && (count - 1) * stride > have - far))
            fail("a copy leaves buffer %u", which);
        VkBufferCopy *parts = space(count * sizeof *parts);
        for (uint32_t p = 0; p < count; p++)
            parts[p] = (VkBufferCopy){from + p * stride, to + p * stride, size};
        if (count) vkCmdCopyBuffer(c, buffers[which].buffer, buffers[which].buffer, count, parts);
        free(parts);
    }
    barrier(c);
    run_once(c);
    put_u32(0);
}
