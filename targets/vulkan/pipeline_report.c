/* Makes the pipeline of one compute shader as the runtime's worker would, and tells what the
 * driver's compiler says of it. Nothing runs: the device need not be there.
 *
 * The only argument is a part of the device's name. On stdin: bytes spirv, u32 push_bytes,
 * u32 subgroup, u32 uniforms, u32 bindings; an empty spirv asks for the device alone. On stdout:
 * u32 0, bytes device, bytes driver, {bytes name, bytes text} of each figure (decimal) and each
 * representation of the code, up to the end; or u32 1 and bytes message.
 */
#include "../../runtime/devices/worker/wire.h"

#include <unistd.h>

#include "../../runtime/devices/worker/device.h"

#define MAX_TOLD 64

static void put_text(const char *text) { put_bytes(text, (uint32_t)strlen(text)); }

static void put_device(void) {
    VkPhysicalDeviceDriverProperties driver = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES};
    VkPhysicalDeviceProperties2 p = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                     .pNext = &driver};
    vkGetPhysicalDeviceProperties2(physical, &p);
    put_text(facts.deviceName);
    put_text(driver.driverInfo);
}

/* A compute pipeline has one executable. */
static VkPipelineExecutableInfoKHR executable(Program p) {
    VkPipelineExecutableInfoKHR which = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR, .pipeline = p.pipeline};
    return which;
}

static uint32_t get_figures(Program p, VkPipelineExecutableStatisticKHR *told) {
    PFN_vkGetPipelineExecutableStatisticsKHR list =
        (PFN_vkGetPipelineExecutableStatisticsKHR)vkGetDeviceProcAddr(
            device, "vkGetPipelineExecutableStatisticsKHR");
    VkPipelineExecutableInfoKHR which = executable(p);
    uint32_t n = MAX_TOLD;
    memset(told, 0, n * sizeof *told);
    for (uint32_t i = 0; i < n; i++)
        told[i].sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR;
    check(list(device, &which, &n, told), "statistics");
    return n;
}

/* Texts of all representations that are text. */
static uint32_t get_texts(Program p, VkPipelineExecutableInternalRepresentationKHR *told) {
    PFN_vkGetPipelineExecutableInternalRepresentationsKHR list =
        (PFN_vkGetPipelineExecutableInternalRepresentationsKHR)vkGetDeviceProcAddr(
            device, "vkGetPipelineExecutableInternalRepresentationsKHR");
    VkPipelineExecutableInfoKHR which = executable(p);
    uint32_t n = MAX_TOLD, texts = 0;
    memset(told, 0, n * sizeof *told);
    for (uint32_t i = 0; i < n; i++)
        told[i].sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INTERNAL_REPRESENTATION_KHR;
    check(list(device, &which, &n, told), "representations");
    for (uint32_t i = 0; i < n; i++) told[i].pData = space(told[i].dataSize);
    check(list(device, &which, &n, told), "representations");
    for (uint32_t i = 0; i < n; i++)
        if (told[i].isText && told[i].dataSize) told[texts++] = told[i];
    return texts;
}

static void put_told(Program p) {
    VkPipelineExecutableStatisticKHR figures[MAX_TOLD];
    VkPipelineExecutableInternalRepresentationKHR texts[MAX_TOLD];
    uint32_t n = get_figures(p, figures), m = get_texts(p, texts);
    for (uint32_t i = 0; i < n; i++) {
        char text[32];
        int real = figures[i].format == VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_FLOAT64_KHR;
        if (real) snprintf(text, sizeof text, "%g", figures[i].value.f64);
        else snprintf(text, sizeof text, "%llu", (unsigned long long)figures[i].value.u64);
        put_text(figures[i].name);
        put_text(text);
    }
    for (uint32_t i = 0; i < m; i++) {
        put_text(texts[i].name);
        put_bytes(texts[i].pData, (uint32_t)texts[i].dataSize - 1); /* it ends with a zero */
    }
}

int main(int argc, char **argv) {
    in = fdopen(dup(0), "rb");
    out = fdopen(dup(1), "wb");
    dup2(2, 1); /* what a driver prints must not mix with the reply */
    if (!in || !out) return 2;
    if (argc > 1) wanted_device = argv[1];
    Bytes spirv = get_bytes();
    uint32_t push = get_u32(), subgroup = get_u32(), uniforms = get_u32(), n = get_u32();
    if (n > MAX_BINDINGS || uniforms > n) fail("%u bindings, %d at most", n, MAX_BINDINGS);
    reporting = 1;
    open_device();
    Program p = {0};
    if (spirv.size) p = make_program(spirv, NULL, push, subgroup, set_layout(n, uniforms));
    put_u32(0);
    put_device();
    if (spirv.size) put_told(p);
    fflush(out);
    return 0;
}
