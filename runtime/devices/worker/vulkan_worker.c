/* Runs Vulkan compute shaders for a parent process: binary requests on stdin, replies on stdout.
 *
 * The only argument is a part of the wanted device's name. Each request begins with a u32:
 *   0 query   -> bytes device, bytes driver, u32 min_subgroup, u32 max_subgroup,
 *                u32 shared_bytes, u32 is_cpu, u64 buffer_bytes,
 *                u32 n, n * u32[8] {M, N, K, A, B, C, result, saturating}
 *                (the first three are sizes, the types are VkComponentTypeKHR)
 *   1 run     bytes spirv, u32 n, n * {u32 id, u32 value} specialization,
 *             bytes push, u32 groups[3], u32 subgroup (0: the driver's choice),
 *             u32 n, n * bytes buffer (set 0, binding = index)
 *             -> n * bytes buffer
 *   2 buffer  u64 size, u32 hidden (1: not where the host sees it) -> u32 its number; zeros
 *   3 kernel  bytes spirv, u32 push_bytes (0 or 4), u32 subgroup, u32 uniforms,
 *             u32 n, n * span (set 0, binding = index; the last `uniforms` are uniform)
 *             -> u32 its number
 *   4 record  u32 n, n * {u32 kernel, u32 groups, u32 push} ->
 *   5 step    u32 n, n * {span, its bytes} to write, u32 run, u32 n, n * span to read
 *             -> the bytes of each
 *   6 copy    u32 n, n * {u32 buffer, u64 from, u64 to, u64 size, u64 stride, u32 count} ->
 * where a span is {u32 buffer, u64 offset, u64 size}. A reply begins with u32 0, or is u32 1 and
 * bytes message: the process then ends, for its state is no longer known.
 */
#include "wire.h"

#include <unistd.h>

#include "device.h"

#include "once.h"
#include "step.h"

static void put_shapes(void) {
    if (!has_matrix) {
        put_u32(0);
        return;
    }
    PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR list =
        (PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR)vkGetInstanceProcAddr(
            instance, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR");
    VkCooperativeMatrixPropertiesKHR shape[64];
    memset(shape, 0, sizeof shape);
    for (int i = 0; i < 64; i++)
        shape[i].sType = VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR;
    uint32_t n = 64;
    VkResult result = list(physical, &n, shape);
    if (result != VK_SUCCESS && result != VK_INCOMPLETE) n = 0;
    put_u32(n);
    for (uint32_t i = 0; i < n; i++) {
        put_u32(shape[i].MSize), put_u32(shape[i].NSize), put_u32(shape[i].KSize);
        put_u32(shape[i].AType), put_u32(shape[i].BType), put_u32(shape[i].CType);
        put_u32(shape[i].ResultType), put_u32(shape[i].saturatingAccumulation);
    }
}

static void answer_query(void) {
    VkPhysicalDeviceVulkan13Properties p13 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_3_PROPERTIES};
    VkPhysicalDeviceVulkan12Properties p12 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_PROPERTIES, .pNext = &p13};
    VkPhysicalDeviceProperties2 p = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                     .pNext = &p12};
    vkGetPhysicalDeviceProperties2(physical, &p);
    put_u32(0);
    put_bytes(facts.deviceName, (uint32_t)strlen(facts.deviceName));
    put_bytes(p12.driverInfo, (uint32_t)strlen(p12.driverInfo));
    put_u32(p13.minSubgroupSize);
    put_u32(p13.maxSubgroupSize);
    put_u32(facts.limits.maxComputeSharedMemorySize);
    put_u32(facts.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU);
    put_u64(facts.limits.maxStorageBufferRange);
    put_shapes();
}

int main(int argc, char **argv) {
    static void (*const answers[])(void) = {answer_query, answer_run,    answer_buffer,
                                            answer_kernel, answer_record, answer_step,
                                            answer_copy};
    /* Replies go to a copy of stdout: what a driver prints there must not mix with them. */
    in = fdopen(dup(0), "rb");
    out = fdopen(dup(1), "wb");
    dup2(2, 1);
    if (!in || !out) return 2;
    if (argc > 1) wanted_device = argv[1];
    uint32_t op;
    while (fread(&op, 4, 1, in) == 1) {
        if (!device) open_device();
        if (op >= sizeof answers / sizeof *answers) fail("unknown request %u", op);
        answers[op]();
        fflush(out);
    }
    return 0;
}
