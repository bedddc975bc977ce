/* The Vulkan device: opening it, memory, pipelines, and waiting for it. */
#include <vulkan/vulkan.h>

#define MAX_BINDINGS 32
#define TRANSFER (4u << 20)

typedef struct {
    VkBuffer buffer;
    VkDeviceMemory memory;
    uint8_t *mapped; /* NULL: the host cannot see it */
    uint64_t size;
} Buffer;

typedef struct {
    VkDescriptorSetLayout layout;
    VkDescriptorPool pool;
    VkDescriptorSet set;
} Bindings;

typedef struct {
    VkShaderModule module;
    VkPipelineLayout layout;
    VkPipeline pipeline;
} Program;

static const char *wanted_device = ""; /* part of the device's name */
static VkInstance instance;
static VkPhysicalDevice physical;
static VkPhysicalDeviceProperties facts;
static VkDevice device;
static VkQueue queue;
static VkCommandPool commands;
static int has_matrix;
static int reporting; /* whether programs keep what their compiler says of them */

static void check(VkResult result, const char *what) {
    if (result != VK_SUCCESS) fail("%s: VkResult %d", what, (int)result);
}

/* The best device of the wanted name: a GPU of its own before one in the CPU before a CPU. */
static void choose_device(void) {
    static const VkPhysicalDeviceType order[] = {
        VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU, VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU,
        VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU, VK_PHYSICAL_DEVICE_TYPE_CPU};
    VkPhysicalDevice found[16];
    uint32_t count = 16;
    VkResult result = vkEnumeratePhysicalDevices(instance, &count, found);
    if (result != VK_SUCCESS && result != VK_INCOMPLETE) fail("no Vulkan device");
    for (uint32_t t = 0; t < 4; t++)
        for (uint32_t i = 0; i < count; i++) {
            vkGetPhysicalDeviceProperties(found[i], &facts);
            if (facts.deviceType != order[t] || !strstr(facts.deviceName, wanted_device)) continue;
            physical = found[i];
            return;
        }
    fail("no Vulkan device%s%s", *wanted_device ? " is called " : "", wanted_device);
}

static uint32_t compute_family(void) {
    VkQueueFamilyProperties families[16];
    uint32_t count = 16;
    vkGetPhysicalDeviceQueueFamilyProperties(physical, &count, families);
    for (uint32_t i = 0; i < count; i++)
        if (families[i].queueFlags & VK_QUEUE_COMPUTE_BIT) return i;
    fail("the device does not compute");
    return 0;
}

static int device_has(const char *extension) {
    uint32_t count = 0;
    check(vkEnumerateDeviceExtensionProperties(physical, NULL, &count, NULL), "extensions");
    VkExtensionProperties *all = space(count * sizeof *all);
    check(vkEnumerateDeviceExtensionProperties(physical, NULL, &count, all), "extensions");
    int found = 0;
    for (uint32_t i = 0; i < count; i++) found |= !strcmp(all[i].extensionName, extension);
    free(all);
    return found;
}

static void open_device(void) {
    VkApplicationInfo app = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                             .apiVersion = VK_API_VERSION_1_3};
    VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                 .pApplicationInfo = &app};
    check(vkCreateInstance(&info, NULL, &instance), "vkCreateInstance");
    choose_device();
    if (facts.apiVersion < VK_API_VERSION_1_3) fail("%s has no Vulkan 1.3", facts.deviceName);
    has_matrix = device_has("VK_KHR_cooperative_matrix");

    VkPhysicalDeviceCooperativeMatrixFeaturesKHR matrix = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR};
    VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR report = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR,
        .pNext = has_matrix ? &matrix : NULL};
    VkPhysicalDeviceVulkan13Features f13 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_FEATURES,
        .pNext = reporting ? &report : report.pNext};
    VkPhysicalDeviceVulkan12Features f12 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES, .pNext = &f13};
    VkPhysicalDeviceVulkan11Features f11 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES, .pNext = &f12};
    VkPhysicalDeviceFeatures2 all = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
                                     .pNext = &f11};
    vkGetPhysicalDeviceFeatures2(physical, &all);
    if (!f12.shaderInt8 || !f12.shaderFloat16 || !f12.storageBuffer8BitAccess ||
        !f12.vulkanMemoryModel || !f11.storageBuffer16BitAccess || !f13.subgroupSizeControl ||
        !f13.computeFullSubgroups)
        fail("%s lacks a feature of 8-bit or 16-bit compute", facts.deviceName);
    all.features.robustBufferAccess = VK_FALSE;

    float priority = 1.0f;
    uint32_t family = compute_family();
    VkDeviceQueueCreateInfo one = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                   .queueFamilyIndex = family,
                                   .queueCount = 1, .pQueuePriorities = &priority};
    const char *extensions[2];
    uint32_t count = 0;
    if (has_matrix) extensions[count++] = "VK_KHR_cooperative_matrix";
    if (reporting) extensions[count++] = "VK_KHR_pipeline_executable_properties";
    VkDeviceCreateInfo create = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO, .pNext = &all,
                                 .queueCreateInfoCount = 1, .pQueueCreateInfos = &one,
                                 .enabledExtensionCount = count,
                                 .ppEnabledExtensionNames = extensions};
    check(vkCreateDevice(physical, &create, NULL, &device), "vkCreateDevice");
    vkGetDeviceQueue(device, family, 0, &queue);
    VkCommandPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                    .queueFamilyIndex = family};
    check(vkCreateCommandPool(device, &pool, NULL, &commands), "vkCreateCommandPool");
}

/* The first memory type with all the flags that the buffer may lie in, or -1. */
static int memory_type(uint32_t allowed, VkMemoryPropertyFlags flags) {
    VkPhysicalDeviceMemoryProperties memory;
    vkGetPhysicalDeviceMemoryProperties(physical, &memory);
    for (uint32_t t = 0; t < memory.memoryTypeCount; t++)
        if (allowed >> t & 1 && (memory.memoryTypes[t].propertyFlags & flags) == flags)
            return (int)t;
    return -1;
}

/* In the device's memory; mapped where the host sees that, unless `hidden` asks for the other. */
static Buffer make_buffer(uint64_t size, int hidden) {
    const VkMemoryPropertyFlags local = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
    const VkMemoryPropertyFlags visible =
        VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    if (size > facts.limits.maxStorageBufferRange)
        fail("a buffer of %llu bytes; %s takes %u", (unsigned long long)size, facts.deviceName,
             facts.limits.maxStorageBufferRange);
    Buffer b = {.size = size};
    VkBufferCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .size = size ? size : 4,
        .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_UNIFORM_BUFFER_BIT |
                 VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT};
    check(vkCreateBuffer(device, &info, NULL, &b.buffer), "vkCreateBuffer");
    VkMemoryRequirements need;
    vkGetBufferMemoryRequirements(device, b.buffer, &need);
    VkResult made = VK_ERROR_OUT_OF_DEVICE_MEMORY;
    for (int hide = hidden; hide < 2 && made != VK_SUCCESS; hide++) {
        int type = memory_type(need.memoryTypeBits, hide ? local : local | visible);
        VkMemoryAllocateInfo allocate = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                         .allocationSize = need.size,
                                         .memoryTypeIndex = (uint32_t)type};
        if (type < 0) continue;
        made = vkAllocateMemory(device, &allocate, NULL, &b.memory);
        if (made == VK_SUCCESS && !hide) {
            check(vkBindBufferMemory(device, b.buffer, b.memory, 0), "vkBindBufferMemory");
            check(vkMapMemory(device, b.memory, 0, VK_WHOLE_SIZE, 0, (void **)&b.mapped),
                  "vkMapMemory");
            return b;
        }
    }
    if (made != VK_SUCCESS)
        fail("%s has no room for %llu bytes", facts.deviceName, (unsigned long long)size);
    check(vkBindBufferMemory(device, b.buffer, b.memory, 0), "vkBindBufferMemory");
    return b;
}

/* Host memory for what passes to and from hidden buffers. */
static Buffer passage(void) {
    static Buffer made;
    if (made.mapped) return made;
    made.size = TRANSFER;
    VkBufferCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .size = TRANSFER,
        .usage = VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT};
    check(vkCreateBuffer(device, &info, NULL, &made.buffer), "vkCreateBuffer");
    VkMemoryRequirements need;
    vkGetBufferMemoryRequirements(device, made.buffer, &need);
    int type = memory_type(need.memoryTypeBits, VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT |
                                                    VK_MEMORY_PROPERTY_HOST_COHERENT_BIT);
    if (type < 0) fail("no host-visible memory");
    VkMemoryAllocateInfo allocate = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                     .allocationSize = need.size,
                                     .memoryTypeIndex = (uint32_t)type};
    check(vkAllocateMemory(device, &allocate, NULL, &made.memory), "vkAllocateMemory");
    check(vkBindBufferMemory(device, made.buffer, made.memory, 0), "vkBindBufferMemory");
    check(vkMapMemory(device, made.memory, 0, VK_WHOLE_SIZE, 0, (void **)&made.mapped),
          "vkMapMemory");
    return made;
}

static void free_buffer(Buffer b) {
    vkDestroyBuffer(device, b.buffer, NULL);
    vkFreeMemory(device, b.memory, NULL);
}

static VkCommandBuffer begin_commands(VkCommandBufferUsageFlags flags) {
    VkCommandBuffer c;
    VkCommandBufferAllocateInfo allocate = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO, .commandPool = commands,
        .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY, .commandBufferCount = 1};
    check(vkAllocateCommandBuffers(device, &allocate, &c), "vkAllocateCommandBuffers");
    VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                      .flags = flags};
    check(vkBeginCommandBuffer(c, &begin), "vkBeginCommandBuffer");
    return c;
}

/* What was written before, shaders, copies and the host see afterwards. */
static void barrier(VkCommandBuffer c) {
    VkMemoryBarrier seen = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
        .srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT,
        .dstAccessMask = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT |
                         VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_TRANSFER_WRITE_BIT |
                         VK_ACCESS_HOST_READ_BIT};
    VkPipelineStageFlags work =
        VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT;
    vkCmdPipelineBarrier(c, work, work | VK_PIPELINE_STAGE_HOST_BIT, 0, 1, &seen, 0, NULL, 0,
                         NULL);
}

static void run_commands(VkCommandBuffer c) {
    VkSubmitInfo work = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1,
                         .pCommandBuffers = &c};
    check(vkQueueSubmit(queue, 1, &work, VK_NULL_HANDLE), "vkQueueSubmit");
    check(vkQueueWaitIdle(queue), "vkQueueWaitIdle");
}

static void run_once(VkCommandBuffer c) {
    check(vkEndCommandBuffer(c), "vkEndCommandBuffer");
    run_commands(c);
    vkFreeCommandBuffers(device, commands, 1, &c);
}

/* Of binding i of n: the last `uniforms` of them are uniform buffers. */
static VkDescriptorType binding_type(uint32_t i, uint32_t n, uint32_t uniforms) {
    return i + uniforms >= n ? VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER
                             : VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
}

static VkDescriptorSetLayout set_layout(uint32_t n, uint32_t uniforms) {
    VkDescriptorSetLayout made;
    VkDescriptorSetLayoutBinding slots[MAX_BINDINGS];
    memset(slots, 0, sizeof slots);
    for (uint32_t i = 0; i < n; i++) {
        slots[i].binding = i;
        slots[i].descriptorType = binding_type(i, n, uniforms);
        slots[i].descriptorCount = 1;
        slots[i].stageFlags = VK_SHADER_STAGE_COMPUTE_BIT;
    }
    VkDescriptorSetLayoutCreateInfo layout = {
        .sType = VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO,
        .bindingCount = n, .pBindings = slots};
    check(vkCreateDescriptorSetLayout(device, &layout, NULL, &made), "descriptor layout");
    return made;
}

/* Binding i is places[i]. */
static Bindings bind_buffers(const VkDescriptorBufferInfo *places, uint32_t n, uint32_t uniforms) {
    Bindings b = {.layout = set_layout(n, uniforms)};
    VkWriteDescriptorSet writes[MAX_BINDINGS];
    memset(writes, 0, sizeof writes);
    VkDescriptorPoolSize sizes[] = {{VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, MAX_BINDINGS},
                                    {VK_DESCRIPTOR_TYPE_UNIFORM_BUFFER, MAX_BINDINGS}};
    VkDescriptorPoolCreateInfo pool = {.sType = VK_STRUCTURE_TYPE_DESCRIPTOR_POOL_CREATE_INFO,
                                       .maxSets = 1, .poolSizeCount = 2, .pPoolSizes = sizes};
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
        writes[i].descriptorType = binding_type(i, n, uniforms);
        writes[i].pBufferInfo = &places[i];
    }
    vkUpdateDescriptorSets(device, n, writes, 0, NULL);
    return b;
}

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
        .flags = reporting ? VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR |
                                 VK_PIPELINE_CREATE_CAPTURE_INTERNAL_REPRESENTATIONS_BIT_KHR
                           : 0,
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
