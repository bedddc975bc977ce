/* Runs Vulkan compute shaders for a parent process: binary requests on stdin, replies on stdout.
 *
 * All numbers are little-endian; "bytes" is a u32 count, then that many bytes.
 *   query   u32 0
 *           -> u32 0, bytes device, bytes driver, u32 min_subgroup, u32 max_subgroup,
 *              u32 shared_bytes, u32 n, n * u32[8] {M, N, K, A, B, C, result, saturating}
 *              (the first three are sizes, the types are VkComponentTypeKHR)
 *   run     u32 1, bytes spirv, u32 n, n * {u32 id, u32 value} specialization,
 *           bytes push, u32 groups[3], u32 subgroup (0: the driver's choice),
 *           u32 n, n * bytes buffer (set 0, binding = index)
 *           -> u32 0, n * bytes buffer
 * Any failure -> u32 1, bytes message; the process then ends, for its state is no longer known.
 */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <vulkan/vulkan.h>

#define MAX_BUFFERS 16
#define MAX_CONSTANTS 32

typedef struct {
    uint32_t size;
    uint8_t *data;
} Bytes;

typedef struct {
    VkBuffer buffer;
    VkDeviceMemory memory;
    void *mapped;
    uint32_t size;
} Shared;

static FILE *in, *out;
static VkInstance instance;
static VkPhysicalDevice physical;
static VkDevice device;
static VkQueue queue;
static VkCommandPool commands;

static void put_u32(uint32_t v) { fwrite(&v, 4, 1, out); }

static void put_bytes(const void *data, uint32_t size) {
    put_u32(size);
    fwrite(data, 1, size, out);
}

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

static void check(VkResult result, const char *what) {
    if (result != VK_SUCCESS) fail("%s: VkResult %d", what, (int)result);
}

static uint32_t get_u32(void) {
    uint32_t v;
    if (fread(&v, 4, 1, in) != 1) fail("the request is cut short");
    return v;
}

static Bytes get_bytes(void) {
    Bytes b = {get_u32(), NULL};
    b.data = malloc(b.size ? b.size : 1);
    if (!b.data) fail("no memory for %u bytes", b.size);
    if (b.size && fread(b.data, 1, b.size, in) != b.size) fail("the request is cut short");
    return b;
}

static void open_device(void) {
    VkApplicationInfo app = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                             .apiVersion = VK_API_VERSION_1_3};
    VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                 .pApplicationInfo = &app};
    check(vkCreateInstance(&info, NULL, &instance), "vkCreateInstance");
    uint32_t count = 1;
    VkResult result = vkEnumeratePhysicalDevices(instance, &count, &physical);
    if (count == 0 || (result != VK_SUCCESS && result != VK_INCOMPLETE)) fail("no Vulkan device");

    VkPhysicalDeviceCooperativeMatrixFeaturesKHR matrix = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR};
    VkPhysicalDeviceVulkan13Features f13 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES, .pNext = &matrix};
    VkPhysicalDeviceVulkan12Features f12 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES, .pNext = &f13};
    VkPhysicalDeviceVulkan11Features f11 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES, .pNext = &f12};
    VkPhysicalDeviceFeatures2 all = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
                                     .pNext = &f11};
    vkGetPhysicalDeviceFeatures2(physical, &all);
    if (!matrix.cooperativeMatrix) fail("the device has no VK_KHR_cooperative_matrix");
    if (!f12.shaderInt8 || !f12.shaderFloat16 || !f12.storageBuffer8BitAccess ||
        !f12.vulkanMemoryModel || !f11.storageBuffer16BitAccess || !f13.subgroupSizeControl ||
        !f13.computeFullSubgroups)
        fail("the device lacks a feature of 8-bit or 16-bit compute");
    all.features.robustBufferAccess = VK_FALSE;

    float priority = 1.0f;
    VkDeviceQueueCreateInfo one = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                   .queueCount = 1, .pQueuePriorities = &priority};
    const char *extensions[] = {"VK_KHR_cooperative_matrix"};
    /* Everything the device has is switched on: family 0 of lavapipe computes. */
    VkDeviceCreateInfo create = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, .pNext = &all,
                                 .queueCreateInfoCount = 1, .pQueueCreateInfos = &one,
                                 .enabledExtensionCount = 1,
                                 .ppEnabledExtensionNames = extensions};
    check(vkCreateDevice(physical, &create, NULL, &device), "vkCreateDevice");
    vkGetDeviceQueue(device, 0, 0, &queue);
    VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO};
    check(vkCreateCommandPool(device, &pool, NULL, &commands), "vkCreateCommandPool");
}

static void answer_query(void) {
    VkPhysicalDeviceVulkan13Properties p13 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_PROPERTIES};
    VkPhysicalDeviceVulkan12Properties p12 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES, .pNext = &p13};
    VkPhysicalDeviceProperties2 p = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                     .pNext = &p12};
    vkGetPhysicalDeviceProperties2(physical, &p);
    PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR list =
        (PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR)vkGetInstanceProcAddr(
            instance, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR");
    VkCooperativeMatrixPropertiesKHR shape[64];
    memset(shape, 0, sizeof shape);
    for (int i = 0; i < 64; i++)
        shape[i].sType = VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR;
    uint32_t n = 64;
    VkResult result = list(physical, &n, shape);
    if (result != VK_INCOMPLETE) check(result, "cooperative matrix properties");

    put_u32(0);
    put_bytes(p.properties.deviceName, (uint32_t)strlen(p.properties.deviceName));
    put_bytes(p12.driverInfo, (uint32_t)strlen(p12.driverInfo));
    put_u32(p13.minSubgroupSize);
    put_u32(p13.maxSubgroupSize);
    put_u32(p.properties.limits.maxComputeSharedMemorySize);
    put_u32(n);
    for (uint32_t i = 0; i < n; i++) {
        put_u32(shape[i].MSize), put_u32(shape[i].NSize), put_u32(shape[i].KSize);
        put_u32(shape[i].AType), put_u32(shape[i].BType), put_u32(shape[i].CType);
        put_u32(shape[i].ResultType), put_u32(shape[i].saturatingAccumulation);
    }
}

static Shared make_buffer(Bytes data) {
    Shared s = {.size = data.size};
    VkBufferCreateInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
                               .size = data.size ? data.size : 4,
                               .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT};
    check(vkCreateBuffer(device, &info, NULL, &s.buffer), "vkCreateBuffer");
    VkMemoryRequirements need;
    vkGetBufferMemoryRequirements(device, s.buffer, &need);
    VkPhysicalDeviceMemoryProperties memory;
    vkGetPhysicalDeviceMemoryProperties(physical, &memory);
    VkMemoryPropertyFlags wanted =
        VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    uint32_t type = 0;
    while (type < memory.memoryTypeCount &&
           !((need.memoryTypeBits >> type & 1) &&
             (memory.memoryTypes[type].propertyFlags & wanted) == wanted))
        type++;
    if (type == memory.memoryTypeCount) fail("no host-visible memory");
    VkMemoryAllocateInfo allocate = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                     .allocationSize = need.size, .memoryTypeIndex = type};
    check(vkAllocateMemory(device, &allocate, NULL, &s.memory), "vkAllocateMemory");
    check(vkBindBufferMemory(device, s.buffer, s.memory, 0), "vkBindBufferMemory");
    check(vkMapMemory(device, s.memory, 0, VK_WHOLE_SIZE, 0, &s.mapped), "vkMapMemory");
    memcpy(s.mapped, data.data, data.size);
    return s;
}

typedef struct {
    VkDescriptorSetLayout layout;
    VkDescriptorPool pool;
    VkDescriptorSet set;
} Bindings;

static Bindings bind_buffers(const Shared *buffers, uint32_t n) {
    Bindings b;
    VkDescriptorSetLayoutBinding slots[MAX_BUFFERS];
    VkDescriptorBufferInfo infos[MAX_BUFFERS];
    VkWriteDescriptorSet writes[MAX_BUFFERS];
    memset(slots, 0, sizeof slots);
    memset(writes, 0, sizeof writes);
    for (uint32_t i = 0; i < n; i++) {
        slots[i].binding = i;
        slots[i].descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
        slots[i].descriptorCount = 1;
        slots[i].stageFlags = VK_SHADER_STAGE_COMPUTE_BIT;
        infos[i] = (VkDescriptorBufferInfo){buffers[i].buffer, 0, VK_WHOLE_SIZE};
    }
    VkDescriptorSetLayoutCreateInfo layout = {
        .sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO,
        .bindingCount = n, .pBindings = slots};
    check(vkCreateDescriptorSetLayout(device, &layout, NULL, &b.layout), "descriptor layout");
    VkDescriptorPoolSize size = {VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, MAX_BUFFERS};
    VkDescriptorPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO,
                                       .maxSets = 1, .poolSizeCount = 1, .pPoolSizes = &size};
    check(vkCreateDescriptorPool(device, &pool, NULL, &b.pool), "descriptor pool");
    VkDescriptorSetAllocateInfo allocate = {
        .sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_ALLOCATE_INFO, .descriptorPool = b.pool,
        .descriptorSetCount = 1, .pSetLayouts = &b.layout};
    check(vkAllocateDescriptorSets(device, &allocate, &b.set), "descriptor set");
    for (uint32_t i = 0; i < n; i++) {
        writes[i].sType = VK_STRUCTURE_TYPE_WRITE_DESCRIPTOR_SET;
        writes[i].dstSet = b.set;
        writes[i].dstBinding = i;
        writes[i].descriptorCount = 1;
        writes[i].descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
        writes[i].pBufferInfo = &infos[i];
    }
    vkUpdateDescriptorSets(device, n, writes, 0, NULL);
    return b;
}

typedef struct {
    VkShaderModule module;
    VkPipelineLayout layout;
    VkPipeline pipeline;
} Program;

static Program make_program(Bytes spirv, const VkSpecializationInfo *constants, uint32_t push,
                            uint32_t subgroup, VkDescriptorSetLayout set) {
    Program p;
    VkShaderModuleCreateInfo code = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
                                     .codeSize = spirv.size,
                                     .pCode = (const uint32_t *)spirv.data};
    check(vkCreateShaderModule(device, &code, NULL, &p.module), "vkCreateShaderModule");
    VkPushConstantRange range = {VK_SHADER_STAGE_COMPUTE_BIT, 0, push};
    VkPipelineLayoutCreateInfo layout = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                         .setLayoutCount = 1, .pSetLayouts = &set,
                                         .pushConstantRangeCount = push ? 1 : 0,
                                         .pPushConstantRanges = &range};
    check(vkCreatePipelineLayout(device, &layout, NULL, &p.layout), "vkCreatePipelineLayout");
    VkPipelineShaderStageRequiredSubgroupSizeCreateInfo size = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO,
        .requiredSubgroupSize = subgroup};
    VkComputePipelineCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .pNext = subgroup ? &size : NULL,
                  .flags = subgroup
                               ? VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT
                               : 0,
                  .stage = VK_SHADER_STAGE_COMPUTE_BIT, .module = p.module, .pName = "main",
                  .pSpecializationInfo = constants},
        .layout = p.layout};
    check(vkCreateComputePipelines(device, VK_NULL_HANDLE, 1, &info, NULL, &p.pipeline),
          "vkCreateComputePipelines");
    return p;
}

static void submit(Program p, VkDescriptorSet set, Bytes push, const uint32_t *groups) {
    VkCommandBuffer c;
    VkCommandBufferAllocateInfo allocate = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, .commandPool = commands,
        .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY, .commandBufferCount = 1};
    check(vkAllocateCommandBuffers(device, &allocate, &c), "vkAllocateCommandBuffers");
    VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    check(vkBeginCommandBuffer(c, &begin), "vkBeginCommandBuffer");
    vkCmdBindPipeline(c, VK_PIPELINE_BIND_POINT_COMPUTE, p.pipeline);
    vkCmdBindDescriptorSets(c, VK_PIPELINE_BIND_POINT_COMPUTE, p.layout, 0, 1, &set, 0, NULL);
    if (push.size)
        vkCmdPushConstants(c, p.layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, push.size, push.data);
    vkCmdDispatch(c, groups[0], groups[1], groups[2]);
    VkMemoryBarrier seen = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                            .srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT,
                            .dstAccessMask = VK_ACCESS_HOST_READ_BIT};
    vkCmdPipelineBarrier(c, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_PIPELINE_STAGE_HOST_BIT, 0,
                         1, &seen, 0, NULL, 0, NULL);
    check(vkEndCommandBuffer(c), "vkEndCommandBuffer");
    VkSubmitInfo work = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1,
                         .pCommandBuffers = &c};
    check(vkQueueSubmit(queue, 1, &work, VK_NULL_HANDLE), "vkQueueSubmit");
    check(vkQueueWaitIdle(queue), "vkQueueWaitIdle");
    vkFreeCommandBuffers(device, commands, 1, &c);
}

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

static void answer_run(void) {
    VkSpecializationMapEntry entries[MAX_CONSTANTS];
    uint32_t values[MAX_CONSTANTS], groups[3];
    Shared buffers[MAX_BUFFERS];
    Bytes spirv = get_bytes();
    VkSpecializationInfo constants = get_constants(entries, values);
    Bytes push = get_bytes();
    for (int i = 0; i < 3; i++) groups[i] = get_u32();
    uint32_t subgroup = get_u32();
    uint32_t n = get_u32();
    if (n > MAX_BUFFERS) fail("%u buffers, %d at most", n, MAX_BUFFERS);
    for (uint32_t i = 0; i < n; i++) {
        Bytes data = get_bytes();
        buffers[i] = make_buffer(data);
        free(data.data);
    }
    Bindings b = bind_buffers(buffers, n);
    Program p = make_program(spirv, &constants, push.size, subgroup, b.layout);
    submit(p, b.set, push, groups);
    put_u32(0);
    for (uint32_t i = 0; i < n; i++) {
        put_bytes(buffers[i].mapped, buffers[i].size);
        vkDestroyBuffer(device, buffers[i].buffer, NULL);
        vkFreeMemory(device, buffers[i].memory, NULL);
    }
    vkDestroyPipeline(device, p.pipeline, NULL);
    vkDestroyPipelineLayout(device, p.layout, NULL);
    vkDestroyShaderModule(device, p.module, NULL);
    vkDestroyDescriptorPool(device, b.pool, NULL);
    vkDestroyDescriptorSetLayout(device, b.layout, NULL);
    free(spirv.data);
    free(push.data);
}

int main(void) {
    /* Replies go to a copy of stdout: what a driver prints there must not mix with them. */
    in = fdopen(dup(0), "rb");
    out = fdopen(dup(1), "wb");
    dup2(2, 1);
    if (!in || !out) return 2;
    uint32_t op;
    while (fread(&op, 4, 1, in) == 1) {
        if (!device) open_device();
        if (op == 0) answer_query();
        else if (op == 1) answer_run();
        else fail("unknown request %u", op);
        fflush(out);
    }
    return 0;
}
