// llama.cpp's choice of types for made-up models; make_mix_goldens.py builds and drives it.
// Lines in: "model ARCH LAYERS HEADS KV EXPERTS EMBD FF", "tensor NAME D0 D1 D2", "preset FILE_TYPE".
// A preset line answers with one line: the type name of every tensor so far, '-' where kept.
#include <cstdio>
#include <cstring>
#include <vector>

#include "ggml.h"
#include "llama-ext.h"
#include "llama.h"

int main() {
    ggml_context *ctx = ggml_init({size_t(64) << 20, nullptr, true});
    llama_model_quantize_params params = llama_model_quantize_default_params();
    quantize_state_impl *state = nullptr;
    std::vector<ggml_tensor *> tensors;
    char line[512], name[256];
    while (fgets(line, sizeof line, stdin)) {
        long d[3];
        unsigned n[6], file_type;
        if (sscanf(line, "model %255s %u %u %u %u %u %u", name, n, n + 1, n + 2, n + 3, n + 4, n + 5) == 7) {
            llama_quant_model_desc desc = {name, n[4], n[5], n[0], n[1], n[2], n[3], n[4] / n[1], n[4] / n[1]};
            state = llama_quant_init(llama_quant_model_from_metadata(&desc), &params);
            tensors.clear();
        } else if (sscanf(line, "tensor %255s %ld %ld %ld", name, d, d + 1, d + 2) == 4) {
            tensors.push_back(ggml_new_tensor_3d(ctx, GGML_TYPE_F16, d[0], d[1], d[2]));
            ggml_set_name(tensors.back(), name);
        } else if (sscanf(line, "preset %u", &file_type) == 1) {
            std::vector<ggml_tensor *> some;
            for (ggml_tensor *t : tensors)
                if (llama_quant_tensor_allows_quantization(state, t)) some.push_back(t);
            std::vector<ggml_type> types(some.size());
            llama_quant_compute_types(state, llama_ftype(file_type), some.data(), types.data(), some.size());
            size_t next = 0;
            for (ggml_tensor *t : tensors) {
                bool chosen = next < some.size() && some[next] == t;
                printf("%s ", chosen ? ggml_type_name(types[next++]) : "-");
            }
            printf("\n");
            fflush(stdout);
        }
    }
    return 0;
}
