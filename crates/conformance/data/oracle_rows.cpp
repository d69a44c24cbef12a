// Rows of llama.cpp for a token sequence, as little-endian f32.
// usage: oracle_rows MODEL.gguf OUT.bin KIND ID,ID,... [DECODER_ID,...] [lora=ADAPTER.gguf]
//   A KIND that ends in +nodes writes every float tensor of the graph to OUT.bin.nodes too: a line of its name, its op and
//   how many values follow, then these.
//   KIND logits: T x vocabulary; steps: the same, one token at a time; flash: the same by flash attention; vectors: T x width, no pooling; decoder: logits of the decoder's ids over encoded ids
//   heads: H x T x vocabulary, each multi-token-prediction head over what the graph before it made of the position before
// F32 keys and values, no flash attention but for KIND flash, no repacking, one thread.
#include "llama.h"
#include "../../src/llama-ext.h"
#include "ggml.h"
#include "ggml-backend.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

static std::vector<llama_token> ids_of(const char * text) {
    std::vector<llama_token> ids;
    for (const char * p = text; *p;) { char * end; ids.push_back((llama_token) strtol(p, &end, 10)); p = *end ? end + 1 : end; }
    return ids;
}

static llama_batch batch_of(const std::vector<llama_token> & ids) {
    llama_batch b = llama_batch_init((int) ids.size(), 0, 1);
    b.n_tokens = (int) ids.size();
    for (int i = 0; i < b.n_tokens; i++) { b.token[i] = ids[i]; b.pos[i] = i; b.n_seq_id[i] = 1; b.seq_id[i][0] = 0; b.logits[i] = 1; }
    return b;
}

static bool write_node(ggml_tensor * t, bool ask, void * file) {
    if (ask || t->type != GGML_TYPE_F32 || !ggml_is_contiguous(t)) return true;
    std::vector<char> data(ggml_nbytes(t));
    ggml_backend_tensor_get(t, data.data(), 0, data.size());
    fprintf((FILE *) file, "%s\t%s\t%zu\n", t->name, ggml_op_name(t->op), data.size() / 4);
    fwrite(data.data(), 1, data.size(), (FILE *) file);
    return true;
}

// The state that a graph gives its head, taken when it is made: the context's copy of it comes when later nodes may have
// written over it (those of DeepSeek V4 do).
static std::vector<float> state;

static bool take_state(ggml_tensor * t, bool ask, void * file) {
    const bool is_state = strcmp(t->name, "h_nextn") == 0;
    if (ask) return is_state || file;
    if (is_state) {
        state.resize(ggml_nelements(t));
        ggml_backend_tensor_get(t, state.data(), 0, ggml_nbytes(t));
    }
    return file ? write_node(t, ask, file) : true;
}

// Logits of every head; each reads token t and the state of position t - 1, zeros at first.
static bool write_heads(llama_model * model, llama_context * trunk, llama_context_params cp, const std::vector<llama_token> & ids, FILE * f) {
    const int heads = llama_model_n_layer_nextn(model), count = (int) ids.size();
    const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
    const size_t width = llama_model_n_embd_out(model);
    if (heads == 0) { fprintf(stderr, "the model has no head\n"); return false; }
    llama_set_embeddings_nextn(trunk, true, false);
    if (llama_decode(trunk, batch_of(ids)) != 0) { fprintf(stderr, "decode failed\n"); return false; }
    cp.ctx_type = LLAMA_CONTEXT_TYPE_MTP;
    cp.ctx_other = trunk;
    llama_context * ctx = llama_init_from_model(model, cp);
    if (!ctx) return false;
    llama_set_embeddings_nextn(ctx, true, false);
    for (int head = 0; head < heads; head++) {
        llama_memory_clear(llama_get_memory(ctx), true);
        llama_set_nextn_layer_offset(ctx, head);
        if (state.size() != count * width) { fprintf(stderr, "%zu values of state\n", state.size()); return false; }
        std::vector<float> before(state);
        before.insert(before.begin(), width, 0.0f);
        llama_batch_ext * batch = llama_batch_ext_init(ctx);
        for (llama_pos t = 0; t < count; t++) {
            const int at = llama_batch_ext_add_token(batch, 0, ids[t]);
            llama_batch_ext_set_pos(batch, at, &t);
            llama_batch_ext_set_output_logits(batch, at, true);
            llama_batch_ext_set_embd_token(batch, at, { before.data() + t * width, 1, width });
        }
        if (llama_process(ctx, LLAMA_PROCESS_TYPE_DECODE, batch) != 0) { fprintf(stderr, "head %d failed\n", head); return false; }
        for (int t = 0; t < count; t++) fwrite(llama_get_logits_ith(ctx, t), 4, vocabulary, f);
        llama_batch_ext_free(batch);
    }
    return true;
}

int main(int argc, char ** argv) {
    if (argc < 5) return 2;
    const char * lora = strncmp(argv[argc - 1], "lora=", 5) == 0 ? argv[argc - 1] + 5 : nullptr;
    std::string kind = argv[3];
    FILE * nodes = nullptr;
    if (kind.size() > 6 && kind.substr(kind.size() - 6) == "+nodes") {
        kind = kind.substr(0, kind.size() - 6);
        nodes = fopen((std::string(argv[2]) + ".nodes").c_str(), "wb");
    }
    if (!getenv("ORACLE_LOG")) llama_log_set([](ggml_log_level level, const char * text, void *) { if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr); }, nullptr);
    llama_backend_init();
    auto mp = llama_model_default_params();
    mp.n_gpu_layers = 0;
    mp.use_extra_bufts = false;
    mp.load_mtp = kind == "heads";
    llama_model * model = llama_model_load_from_file(argv[1], mp);
    if (!model) return 1;
    auto cp = llama_context_default_params();
    cp.n_ctx = 256; cp.n_batch = 256; cp.n_ubatch = 256; cp.n_threads = 1; cp.n_threads_batch = 1;
    cp.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    cp.type_k = GGML_TYPE_F32; cp.type_v = GGML_TYPE_F32;
    if (nodes) { cp.cb_eval = write_node; cp.cb_eval_user_data = nodes; }
    if (kind == "heads") { cp.cb_eval = take_state; cp.cb_eval_user_data = nodes; }
    const bool steps = kind == "steps";
    const bool vectors = kind == "vectors";
    if (kind == "flash") cp.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    if (vectors) { cp.embeddings = true; cp.pooling_type = LLAMA_POOLING_TYPE_NONE; }
    llama_context * ctx = llama_init_from_model(model, cp);
    if (!ctx) return 1;
    if (lora) {
        llama_adapter_lora * adapter = llama_adapter_lora_init(model, lora);
        float scale = 1.0f;
        if (!adapter || llama_set_adapters_lora(ctx, &adapter, 1, &scale) != 0) { fprintf(stderr, "the adapter was refused\n"); return 1; }
    }
    if (kind == "heads") {
        FILE * f = fopen(argv[2], "wb");
        const bool done = write_heads(model, ctx, cp, ids_of(argv[4]), f);
        fclose(f);
        return done ? 0 : 1;
    }
    const int width_logits = llama_vocab_n_tokens(llama_model_get_vocab(model));
    if (steps) {
        FILE * f = fopen(argv[2], "wb");
        int pos = 0;
        for (llama_token id : ids_of(argv[4])) {
            llama_batch one = batch_of({ id });
            one.pos[0] = pos++;
            if (llama_decode(ctx, one) != 0) { fprintf(stderr, "decode failed\n"); return 1; }
            fwrite(llama_get_logits_ith(ctx, 0), 4, width_logits, f);
        }
        fclose(f);
        return 0;
    }
    llama_batch batch = batch_of(ids_of(argv[4]));
    if (kind == "decoder") {
        if (llama_encode(ctx, batch) != 0) { fprintf(stderr, "encode failed\n"); return 1; }
        batch = batch_of(ids_of(argv[5]));
    }
    const bool encoder = vectors && llama_model_has_encoder(model) && !llama_model_has_decoder(model);
    if ((encoder ? llama_encode(ctx, batch) : llama_decode(ctx, batch)) != 0) { fprintf(stderr, "decode failed\n"); return 1; }
    const int width = vectors ? llama_model_n_embd(model) : width_logits;
    FILE * f = fopen(argv[2], "wb");
    for (int i = 0; i < batch.n_tokens; i++) {
        const float * row = vectors ? llama_get_embeddings_ith(ctx, i) : llama_get_logits_ith(ctx, i);
        if (!row) { fprintf(stderr, "row %d is absent\n", i); return 1; }
        fwrite(row, 4, width, f);
    }
    fclose(f);
    if (nodes) fclose(nodes);
    return 0;
}
