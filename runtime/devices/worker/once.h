/* One dispatch on buffers that come and go with the request: for tests and trials. */
#define MAX_CONSTANTS 32

static VkSpecializationInfo get_constants(VkSpecializationMapEntry *entries, uint32_t *values) {
    uint32_t n = get_u32();
    if (n > MAX_CONSTANTS) fail("%u constants, %d at most", n, MAX_CONSTANTS);
    for (uint32_t i = 0; i < n; i++) {
        entries[i].constantID = get_u32();
        entries[i].offset = 4 * i;
        entries[i].size = 4;
        values[i] = get_u32();
    }
    VkSpecializationInfo info = {n, entries, 4 * n, values};
    return info;
}

static void dispatch_once(Program p, VkDescriptorSet set, Bytes push, const uint32_t *groups) {
    VkCommandBuffer c = begin_commands(0);
    vkCmdBindPipeline(c, VK_PIPELINE_BIND_POINT_COMPUTE, p.pipeline);
    vkCmdBindDescriptorSets(c, VK_PIPELINE_BIND_POINT_COMPUTE, p.layout, 0, 1, &set, 0, NULL);
    if (push.size)
        vkCmdPushConstants(c, p.layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, push.size, push.data);
    vkCmdDispatch(c, groups[0], groups[1], groups[2]);
    barrier(c);
    run_once(c);
}

static void answer_run(void) {
    VkSpecializationMapEntry entries[MAX_CONSTANTS];
    uint32_t values[MAX_CONSTANTS], groups[3];
    Buffer buffers[MAX_BINDINGS];
    VkDescriptorBufferInfo places[MAX_BINDINGS];
    Bytes spirv = get_bytes();
    VkSpecializationInfo constants = get_constants(entries, values);
    Bytes push = get_bytes();
    for (int i = 0; i < 3; i++) groups[i] = get_u32();
    uint32_t subgroup = get_u32();
    uint32_t n = get_u32();
    if (n > MAX_BINDINGS) fail("%u buffers, %d at most", n, MAX_BINDINGS);
    for (uint32_t i = 0; i < n; i++) {
        Bytes data = get_bytes();
        buffers[i] = make_buffer(data.size, 0);
        if (!buffers[i].mapped) fail("no device memory that the host sees");
        memcpy(buffers[i].mapped, data.data, data.size);
        places[i] = (VkDescriptorBufferInfo){buffers[i].buffer, 0, VK_WHOLE_SIZE};
        free(data.data);
    }
    Bindings b = bind_buffers(places, n, 0);
    Program p = make_program(spirv, &constants, push.size, subgroup, b.layout);
    dispatch_once(p, b.set, push, groups);
    put_u32(0);
    for (uint32_t i = 0; i < n; i++) {
        put_bytes(buffers[i].mapped, (uint32_t)buffers[i].size);
        free_buffer(buffers[i]);
    }
    vkDestroyPipeline(device, p.pipeline, NULL);
    vkDestroyPipelineLayout(device, p.layout, NULL);
    vkDestroyShaderModule(device, p.module, NULL);
    vkDestroyDescriptorPool(device, b.pool, NULL);
    vkDestroyDescriptorSetLayout(device, b.layout, NULL);
    free(spirv.data);
    free(push.data);
}
