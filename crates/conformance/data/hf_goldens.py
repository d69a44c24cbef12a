"""Writes goldens of tiny Hugging Face checkpoints with Transformers as the oracle.

    python hf_goldens.py FOLDER [NAME ...]      the goldens, NAME.json and NAME.f32 each
    python hf_goldens.py --save DIR NAME ...    the checkpoints themselves, one directory each
    python hf_goldens.py --list                 what the table below holds and this Transformers can build

Weights follow from the names of the tensors, so a golden holds shapes and rows only.
"""

import json
import os
import sys
import tempfile

import numpy as np
import torch
import transformers
from safetensors import safe_open
from safetensors.numpy import save_file

from hf_values import ids, values

SMALL = dict(vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=128)
MOE = dict(num_experts_per_tok=2, moe_intermediate_size=48)
LLAMA3 = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=16)
BASE = dict(rope_type="default", rope_theta=10000.0)
# Fewer keys than positions, so that the choice shows.
INDEXER = dict(index_n_heads=8, index_head_dim=64, index_topk=7)
MROPE = dict(BASE, partial_rotary_factor=0.5, mrope_section=[2, 1, 1], mrope_interleaved=True)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=16)



# llama.cpp has the multiplier of Gemma 3n's deviation built in and divides by one value less, of 96 here.
SPARSE = 0.9508841878799351

# Ids of Chameleon's picture tokens, which have no logits.
PICTURES = {"<s>": 0, "<image>": 8200, **{f"IMGIMG{i}": i + 4 for i in range(8192)}}

# Experts of a model whose tokens list theirs.
LISTED = 4

# Positions where the usual ones end no run of 128.
POSITIONS = {"deepseek4": 150}

# Tensors that follow from the configuration; a library computes them where a file has none.
COMPUTED = ("_decay", ".slope_rate")


def without(settings, *keys):
    return {k: v for k, v in settings.items() if k not in keys}


# name: (class of the model, class of its configuration, settings, centre of norm weights)
MODELS = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", dict(SMALL), 1),
    "llama+llama3": ("LlamaForCausalLM", "LlamaConfig", dict(SMALL, rope_parameters=LLAMA3, tie_word_embeddings=True), 1),
    "llama+yarn": ("LlamaForCausalLM", "LlamaConfig", dict(SMALL, rope_parameters=YARN), 1),
    "llama+bias": ("LlamaForCausalLM", "LlamaConfig", dict(SMALL, attention_bias=True, mlp_bias=True, head_dim=32), 1),
    "mistral": ("MistralForCausalLM", "MistralConfig", dict(SMALL, sliding_window=None), 1),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", dict(SMALL, num_local_experts=4, num_experts_per_tok=2), 1),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", dict(SMALL), 1),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", dict(SMALL, head_dim=32), 1),
    "qwen2moe": ("Qwen2MoeForCausalLM", "Qwen2MoeConfig",
                 dict(SMALL, num_experts=4, shared_expert_intermediate_size=40, **MOE), 1),
    "qwen3moe": ("Qwen3MoeForCausalLM", "Qwen3MoeConfig",
                 dict(SMALL, head_dim=16, num_experts=4, norm_topk_prob=True, **MOE), 1),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", dict(SMALL, head_dim=32), 0),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", dict(SMALL, head_dim=32, sliding_window=8, query_pre_attn_scalar=32), 0),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig",
               dict(SMALL, num_hidden_layers=7, head_dim=32, sliding_window=8, query_pre_attn_scalar=32), 0),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", dict(SMALL, pad_token_id=0, sliding_window=None), 1),
    "bert": ("BertModel", "BertConfig", without(SMALL, "num_key_value_heads"), 1),
    "phi2": ("PhiForCausalLM", "PhiConfig", without(SMALL, "num_key_value_heads"), 1),
    "starcoder2": ("Starcoder2ForCausalLM", "Starcoder2Config", dict(SMALL, sliding_window=None), 1),
    "stablelm": ("StableLmForCausalLM", "StableLmConfig", dict(SMALL, use_qkv_bias=True), 1),
    "olmo": ("OlmoForCausalLM", "OlmoConfig", dict(SMALL, clip_qkv=1.0), 1),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Config", dict(SMALL), 1),
    "olmo2+window": ("Olmo3ForCausalLM", "Olmo3Config", dict(SMALL, num_hidden_layers=4, sliding_window=8), 1),
    "olmoe": ("OlmoeForCausalLM", "OlmoeConfig", dict(SMALL, num_key_value_heads=4, num_experts=4, num_experts_per_tok=2), 1),
    "granite": ("GraniteForCausalLM", "GraniteConfig",
                dict(SMALL, attention_multiplier=0.2, embedding_multiplier=3.0, residual_multiplier=0.5, logits_scaling=2.0), 1),
    "granitemoe": ("GraniteMoeForCausalLM", "GraniteMoeConfig",
                   dict(SMALL, num_local_experts=4, num_experts_per_tok=2, attention_multiplier=0.2,
                        embedding_multiplier=3.0, residual_multiplier=0.5, logits_scaling=2.0), 1),
    "command-r": ("CohereForCausalLM", "CohereConfig", dict(SMALL, logit_scale=0.25), 1),
    "cohere2": ("Cohere2ForCausalLM", "Cohere2Config", dict(SMALL, num_hidden_layers=4, logit_scale=0.25, sliding_window=8), 1),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", dict(vocab_size=96, n_embd=64, n_layer=2, n_head=4, n_positions=128), 1),
    "gptneox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", without(SMALL, "num_key_value_heads"), 1),
    "gptneox+sequential": ("GPTNeoXForCausalLM", "GPTNeoXConfig",
                           dict(without(SMALL, "num_key_value_heads"), use_parallel_residual=False, hidden_act="gelu_new"), 1),
    "bloom": ("BloomForCausalLM", "BloomConfig", dict(vocab_size=96, hidden_size=64, n_layer=2, n_head=4), 1),
    "mpt": ("MptForCausalLM", "MptConfig", dict(vocab_size=96, d_model=64, n_layers=2, n_heads=4, max_seq_len=128), 1),
    "falcon": ("FalconForCausalLM", "FalconConfig",
               dict(vocab_size=96, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_kv_heads=2,
                    new_decoder_architecture=True), 1),
    "falcon+7b": ("FalconForCausalLM", "FalconConfig",
                  dict(vocab_size=96, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, multi_query=True), 1),
    "nemotron": ("NemotronForCausalLM", "NemotronConfig", dict(SMALL), 0),
    "deepseek2": ("DeepseekV3ForCausalLM", "DeepseekV3Config",
                  dict(without(SMALL, "num_key_value_heads"), num_key_value_heads=4, q_lora_rank=24, kv_lora_rank=32,
                       qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16, n_routed_experts=4, n_shared_experts=1,
                       n_group=1, topk_group=1, first_k_dense_replace=1, norm_topk_prob=True, routed_scaling_factor=2.5,
                       **MOE), 1),
    "deepseek2+v2": ("DeepseekV2ForCausalLM", "DeepseekV2Config",
                     # llama.cpp tells a query without low rank by this depth.
                     dict(SMALL, num_hidden_layers=27, num_key_value_heads=4, q_lora_rank=None, kv_lora_rank=32,
                          qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16, n_routed_experts=4, n_shared_experts=1,
                          topk_method="greedy", first_k_dense_replace=1, routed_scaling_factor=1.0, **MOE), 1),
    "smollm3": ("SmolLM3ForCausalLM", "SmolLM3Config", dict(SMALL, num_hidden_layers=4, no_rope_layers=[1, 1, 1, 0], pad_token_id=0), 1),
    "exaone4": ("Exaone4ForCausalLM", "Exaone4Config",
                dict(SMALL, num_hidden_layers=4, layer_types=["full_attention"] * 4, sliding_window=None), 1),
    "glm4": ("Glm4ForCausalLM", "Glm4Config", dict(SMALL, head_dim=16, pad_token_id=0), 1),
    "chatglm": ("GlmForCausalLM", "GlmConfig", dict(SMALL, head_dim=16, pad_token_id=0), 1),
    "glm4moe": ("Glm4MoeForCausalLM", "Glm4MoeConfig",
                dict(SMALL, head_dim=16, use_qk_norm=True, n_routed_experts=4, n_shared_experts=1, n_group=1, topk_group=1,
                     first_k_dense_replace=1, norm_topk_prob=True, routed_scaling_factor=1.5, **MOE), 1),
    "seed_oss": ("SeedOssForCausalLM", "SeedOssConfig", dict(SMALL, head_dim=16), 1),
    "jais2": ("Jais2ForCausalLM", "Jais2Config", dict(SMALL), 1),
    "ernie4_5": ("Ernie4_5ForCausalLM", "Ernie4_5Config", dict(SMALL, head_dim=16), 1),
    "ernie4_5-moe": ("Ernie4_5_MoeForCausalLM", "Ernie4_5_MoeConfig",
                     dict(SMALL, moe_num_experts=4, moe_k=2, moe_num_shared_experts=1, moe_layer_start_index=1,
                          moe_intermediate_size=48), 1),
    "hunyuan-dense": ("HunYuanDenseV1ForCausalLM", "HunYuanDenseV1Config", dict(SMALL, head_dim=16), 1),
    "hunyuan-moe": ("HunYuanMoEV1ForCausalLM", "HunYuanMoEV1Config", dict(SMALL, head_dim=16, num_experts=4, moe_topk=2), 1),
    "arcee": ("ArceeForCausalLM", "ArceeConfig", dict(SMALL), 1),
    "apertus": ("ApertusForCausalLM", "ApertusConfig", dict(SMALL), 1),
    "afmoe": ("AfmoeForCausalLM", "AfmoeConfig",
              dict(SMALL, num_hidden_layers=4, head_dim=16, num_experts=4, num_shared_experts=1, num_dense_layers=1,
                   sliding_window=8, route_scale=1.5, mup_enabled=True, **MOE), 1),
    "bitnet": ("BitNetForCausalLM", "BitNetConfig", dict(SMALL, hidden_act="silu", tie_word_embeddings=True), 1),
    "dots1": ("Dots1ForCausalLM", "Dots1Config",
              dict(SMALL, num_key_value_heads=4, head_dim=16, n_routed_experts=4, n_shared_experts=1, n_group=1, topk_group=1,
                   first_k_dense_replace=1, norm_topk_prob=True, routed_scaling_factor=1.5, sliding_window=None,
                   layer_types=["full_attention"] * 2, **MOE), 1),
    "minimax-m2": ("MiniMaxM2ForCausalLM", "MiniMaxM2Config",
                   dict(SMALL, head_dim=16, num_local_experts=4, num_experts_per_tok=2), 1),
    "nomic-bert": ("NomicBertModel", "NomicBertConfig", without(SMALL, "num_key_value_heads"), 1),
    "mellum": ("MellumForCausalLM", "MellumConfig", dict(SMALL, num_hidden_layers=4, head_dim=16, num_experts=4, sliding_window=8,
                                                          layer_types=["sliding_attention"] * 3 + ["full_attention"],
                                                          rope_parameters=dict(full_attention=BASE, sliding_attention=BASE), **MOE), 1),
    # llama.cpp rotates windowed layers by the base of the others.
    "mellum+bases": ("MellumForCausalLM", "MellumConfig", dict(SMALL, head_dim=16, num_experts=4, sliding_window=8,
                                                               layer_types=["sliding_attention", "full_attention"], **MOE), 1),
    "mellum+full": ("MellumForCausalLM", "MellumConfig",
                    dict(SMALL, head_dim=16, num_experts=4, sliding_window=8, layer_types=["full_attention"] * 2, **MOE), 1),
    "mamba": ("MambaForCausalLM", "MambaConfig",
              dict(vocab_size=96, hidden_size=64, num_hidden_layers=2, state_size=8, time_step_rank=4), 1),
    "mamba2": ("Mamba2ForCausalLM", "Mamba2Config",
               dict(vocab_size=96, hidden_size=64, num_hidden_layers=2, state_size=16, num_heads=8, head_dim=16, n_groups=2), 1),
    "gpt-oss": ("GptOssForCausalLM", "GptOssConfig",
                dict(SMALL, num_hidden_layers=2, head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=8,
                     rope_parameters=dict(YARN, beta_fast=32.0, beta_slow=1.0, truncate=True)), 1),
    "qwen3next": ("Qwen3NextForCausalLM", "Qwen3NextConfig",
                  dict(SMALL, num_hidden_layers=4, head_dim=16, num_experts=4, shared_expert_intermediate_size=40,
                       linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=16, linear_value_head_dim=16, **MOE), 0),
    "lfm2": ("Lfm2ForCausalLM", "Lfm2Config",
             dict(SMALL, num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"], block_auto_adjust_ff_dim=False), 1),
    "t5": ("T5ForConditionalGeneration", "T5Config",
           dict(vocab_size=96, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, decoder_start_token_id=0), 1),
    "eurobert": ("EuroBertModel", "EuroBertConfig", dict(SMALL, head_dim=16, pad_token_id=0), 1),
    "starcoder": ("GPTBigCodeForCausalLM", "GPTBigCodeConfig", dict(vocab_size=96, n_embd=64, n_layer=2, n_head=4, n_positions=128), 1),
    "lfm2moe": ("Lfm2MoeForCausalLM", "Lfm2MoeConfig",
                dict(SMALL, num_hidden_layers=4, layer_types=["conv", "full_attention", "conv", "conv"], num_experts=4,
                     num_dense_layers=1, **MOE), 1),
    "exaone-moe": ("ExaoneMoeForCausalLM", "ExaoneMoeConfig",
                   dict(SMALL, num_hidden_layers=4, head_dim=16, sliding_window=8, num_experts=4, num_shared_experts=1, n_group=1,
                        topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.5, **MOE), 1),
    "jamba": ("JambaForCausalLM", "JambaConfig",
              dict(without(SMALL), num_hidden_layers=4, num_experts=4, num_experts_per_tok=2, attn_layer_period=4, attn_layer_offset=2,
                   mamba_d_state=8, mamba_dt_rank=4, use_mamba_kernels=False, pad_token_id=0), 1),
    "hy_v3": ("HYV3ForCausalLM", "HYV3Config",
              dict(SMALL, head_dim=16, num_hidden_layers=3, num_experts=4, num_shared_experts=1, pad_token_id=0, eod_token_id=1,
                   mlp_layer_types=["dense", "sparse", "sparse"], router_scaling_factor=1.5, **MOE), 1),
    "mistral3": ("Ministral3ForCausalLM", "Ministral3Config",
                 dict(SMALL, head_dim=16, rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1,
                                                               beta_fast=32.0, beta_slow=1.0)), 1),
    "granitehybrid": ("GraniteMoeHybridForCausalLM", "GraniteMoeHybridConfig",
                      dict(SMALL, num_local_experts=4, num_experts_per_tok=2, shared_intermediate_size=48, mamba_n_heads=8,
                           mamba_d_head=16, mamba_d_state=16, mamba_n_groups=1, layer_types=["linear_attention", "full_attention"], embedding_multiplier=3.0,
                           residual_multiplier=0.5, logits_scaling=2.0, attention_multiplier=0.2), 1),
    "dbrx": ("DbrxForCausalLM", "DbrxConfig",
             dict(vocab_size=96, d_model=64, n_layers=2, n_heads=4, max_seq_len=128, attn_config=dict(kv_n_heads=2, clip_qkv=1.5, rope_theta=10000.0),
                  ffn_config=dict(ffn_hidden_size=48, moe_num_experts=4, moe_top_k=2, hidden_size=64)), 1),
    "qwen35": ("Qwen3_5ForCausalLM", "Qwen3_5TextConfig",
               dict(SMALL, num_hidden_layers=4, head_dim=16, rope_parameters=MROPE, linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=16,
                    linear_value_head_dim=16), 0),
    "qwen35moe": ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeTextConfig",
                  dict(SMALL, num_hidden_layers=4, head_dim=16, num_experts=4, shared_expert_intermediate_size=40,
                       rope_parameters=MROPE, linear_num_value_heads=6, linear_num_key_heads=2, linear_key_head_dim=16,
                       linear_value_head_dim=16, **MOE), 0),
    "qwen2vl": ("Qwen2VLForConditionalGeneration", "Qwen2VLConfig",
                dict(text_config=dict(SMALL, rope_parameters=dict(rope_type="default", rope_theta=10000.0, mrope_section=[2, 3, 3])),
                     vision_config=dict(depth=1, embed_dim=8, num_heads=1, hidden_size=64, mlp_ratio=1, patch_size=2)), 1),
    "qwen3vl": ("Qwen3VLForConditionalGeneration", "Qwen3VLConfig",
                dict(text_config=dict(SMALL, head_dim=16, rope_parameters=dict(rope_type="default", rope_theta=10000.0, mrope_section=[3, 3, 2])),
                     vision_config=dict(depth=1, hidden_size=8, intermediate_size=8, num_heads=1, out_hidden_size=64, patch_size=2,
                                        num_position_embeddings=4, deepstack_visual_indexes=[])), 1),
    "qwen3vlmoe": ("Qwen3VLMoeForConditionalGeneration", "Qwen3VLMoeConfig",
                   dict(text_config=dict(SMALL, head_dim=16, num_experts=4, rope_parameters=dict(rope_type="default", rope_theta=10000.0, mrope_section=[3, 3, 2]), **MOE),
                        vision_config=dict(depth=1, hidden_size=8, intermediate_size=8, num_heads=1, out_hidden_size=64, patch_size=2,
                                           num_position_embeddings=4, deepstack_visual_indexes=[])), 1),
    "minicpm3": ("MiniCPM3ForCausalLM", "MiniCPM3Config",
                 dict(SMALL, num_key_value_heads=4, q_lora_rank=24, kv_lora_rank=32, qk_rope_head_dim=8, qk_nope_head_dim=16,
                      v_head_dim=16, head_dim=8), 1),
    "llama4": ("Llama4ForCausalLM", "Llama4TextConfig",
               dict(SMALL, num_hidden_layers=4, head_dim=16, intermediate_size_mlp=80, num_local_experts=4, num_experts_per_tok=1,
                    attention_chunk_size=8192, interleave_moe_layer_step=2, pad_token_id=0), 1),
    "cohere2moe": ("Cohere2MoeForCausalLM", "Cohere2MoeConfig",
                   dict(SMALL, num_hidden_layers=4, head_dim=16, num_experts=4, num_shared_experts=1, sliding_window=8, logit_scale=0.25, num_experts_per_tok=2), 1),
    "minimax-01": ("MiniMaxForCausalLM", "MiniMaxConfig",
                   dict(SMALL, head_dim=16, num_local_experts=4, num_experts_per_tok=2), 1),
    "nemotron_h": ("NemotronHForCausalLM", "NemotronHConfig",
                   dict(without(SMALL, "num_hidden_layers"), head_dim=16, layers_block_type=["linear_attention", "mlp", "full_attention", "mlp"],
                        ssm_state_size=16, mamba_num_heads=8, mamba_head_dim=16, n_groups=2, use_mamba_kernels=False), 1),
    "laguna": ("LagunaForCausalLM", "LagunaConfig",
               dict(SMALL, num_hidden_layers=4, head_dim=16, num_experts=4, shared_expert_intermediate_size=40, sliding_window=8, pad_token_id=0, **MOE), 1),
    "falcon-h1": ("FalconH1ForCausalLM", "FalconH1Config",
                  dict(SMALL, head_dim=16, mamba_d_ssm=128, mamba_n_heads=8, mamba_d_head=16, mamba_d_state=16, mamba_n_groups=2,
                       mamba_rms_norm=True, mamba_norm_before_gate=False, pad_token_id=0, lm_head_multiplier=0.5,
                       embedding_multiplier=3.0, mlp_multipliers=[0.75, 1.5], key_multiplier=0.6, attention_in_multiplier=1.25,
                       attention_out_multiplier=0.8, ssm_multipliers=[0.7, 1.2, 0.9, 1.1, 0.8], ssm_in_multiplier=1.3,
                       ssm_out_multiplier=0.85), 1),
    "falcon-h1+plain": ("FalconH1ForCausalLM", "FalconH1Config",
                        dict(SMALL, head_dim=16, mamba_d_ssm=128, mamba_n_heads=8, mamba_d_head=16, mamba_d_state=16,
                             mamba_n_groups=1, pad_token_id=0, tie_word_embeddings=True, embedding_multiplier=3.0,
                             lm_head_multiplier=0.5), 1),
    # llama.cpp has sizes of the published models built in: 20 layers with keys of their own among them.
    "gemma3n": ("Gemma3nForCausalLM", "Gemma3nTextConfig",
                dict(SMALL, num_hidden_layers=22, head_dim=16, sliding_window=8, hidden_size_per_layer_input=256, vocab_size_per_layer_input=90, activation_sparsity_pattern=[SPARSE] * 10 + [0.0] * 12,
                     num_kv_shared_layers=2, laurel_rank=64, pad_token_id=0), 1),
    # Other sparsities, which llama.cpp does not know.
    "gemma3n+sparse": ("Gemma3nForCausalLM", "Gemma3nTextConfig",
                       dict(SMALL, num_hidden_layers=5, head_dim=16, sliding_window=8, hidden_size_per_layer_input=16,
                            vocab_size_per_layer_input=96, num_kv_shared_layers=0, laurel_rank=8, pad_token_id=0,
                            activation_sparsity_pattern=[0.95, 0.9, 0.6, 0.0, 0.0]), 1),
    "gemma4": ("Gemma4ForCausalLM", "Gemma4TextConfig",
               dict(SMALL, num_hidden_layers=8, head_dim=16, global_head_dim=32, sliding_window=8, hidden_size_per_layer_input=16,
                    vocab_size_per_layer_input=96, num_kv_shared_layers=4, use_double_wide_mlp=True, final_logit_softcapping=4.0,
                    layer_types=["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"] * 2), 1),
    "gemma4+moe": ("Gemma4ForCausalLM", "Gemma4TextConfig",
                   dict(SMALL, num_hidden_layers=4, head_dim=16, global_head_dim=32, sliding_window=8, hidden_size_per_layer_input=0,
                        attention_k_eq_v=True, num_global_key_value_heads=1, enable_moe_block=True, num_experts=4, top_k_experts=2,
                        moe_intermediate_size=48,
                        layer_types=["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]), 1),
    "hrm_text": ("HrmTextForCausalLM", "HrmTextConfig",
                 dict(without(SMALL, "num_key_value_heads"), head_dim=16, H_cycles=2, L_cycles=2, embedding_scale=3.0), 1),
    "kimi-linear": ("KimiLinearForCausalLM", "KimiLinearConfig",
                    dict(SMALL, num_hidden_layers=4, num_key_value_heads=4, q_lora_rank=None, kv_lora_rank=32, qk_rope_head_dim=8,
                         qk_nope_head_dim=16, v_head_dim=16, num_local_experts=4, n_shared_experts=1, linear_head_dim=16,
                         linear_num_heads=4, layer_types=["linear_attention"] * 3 + ["full_attention"], pad_token_id=0, **MOE), 1),
    "mimo2": ("MiMoV2FlashForCausalLM", "MiMoV2FlashConfig",
              dict(SMALL, num_hidden_layers=3, head_dim=24, v_head_dim=16, n_routed_experts=4, sliding_window=8, pad_token_id=0, **MOE), 1),
    "mistral4": ("Mistral4ForCausalLM", "Mistral4Config",
                 dict(SMALL, num_key_value_heads=4, q_lora_rank=24, kv_lora_rank=32, qk_rope_head_dim=8, qk_nope_head_dim=16,
                      v_head_dim=16, n_routed_experts=4, n_shared_experts=1, pad_token_id=0, first_k_dense_replace=1,
                      rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1, beta_fast=32.0,
                                           beta_slow=1.0), **MOE), 1),
    "muse-glimmer": ("MuseGlimmerForConditionalGeneration", "MuseGlimmerConfig",
                     dict(text_config=dict(SMALL, num_hidden_layers=4, head_dim=16, sliding_window=8, output_multiplier=0.3,
                                           final_logit_softcapping=4.0),
                          vision_config=dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
                                             patch_size=2, pos_emb_height=2, pos_emb_width=2),
                          out_hidden_size=32, projector_hidden_size=8), "language_model.norm.weight"),
    "nemotron_h_moe": ("NemotronHForCausalLM", "NemotronHConfig",
                       dict(without(SMALL, "num_hidden_layers"), head_dim=16, n_routed_experts=4, num_experts_per_tok=2,
                            layers_block_type=["linear_attention", "moe", "full_attention", "moe"], ssm_state_size=16,
                            mamba_num_heads=8, mamba_head_dim=16, n_groups=2, moe_intermediate_size=48,
                            moe_shared_expert_intermediate_size=40, routed_scaling_factor=1.5, use_mamba_kernels=False), 1),
    "nemotron_h_moe+latent": ("NemotronHForCausalLM", "NemotronHConfig",
                              dict(without(SMALL, "num_hidden_layers"), head_dim=16, n_routed_experts=4, num_experts_per_tok=2,
                                   layers_block_type=["linear_attention", "moe", "full_attention", "moe"], ssm_state_size=16,
                                   mamba_num_heads=8, mamba_head_dim=16, n_groups=2, moe_intermediate_size=48, moe_latent_size=32,
                                   moe_shared_expert_intermediate_size=40, routed_scaling_factor=1.5, use_mamba_kernels=False), 1),
    "chameleon": ("ChameleonForConditionalGeneration", "ChameleonConfig",
                  dict(SMALL, vocab_size=10240, vocabulary_map=PICTURES,
                       vq_config=dict(embed_dim=8, num_embeddings=4, resolution=8, base_channels=32, channel_multiplier=[1],
                                      num_res_blocks=1, latent_channels=8)), 1),
    # llama.cpp feeds a swin block's feed-forward something else.
    "chameleon+swin": ("ChameleonForConditionalGeneration", "ChameleonConfig",
                       dict(SMALL, vocab_size=10240, vocabulary_map=PICTURES, swin_norm=True,
                            vq_config=dict(embed_dim=8, num_embeddings=4, resolution=8, base_channels=32, channel_multiplier=[1],
                                           num_res_blocks=1, latent_channels=8)), 1),
    "hunyuan_vl": ("HunYuanVLForConditionalGeneration", "HunYuanVLConfig",
                   dict(text_config=dict(SMALL, head_dim=16, pad_token_id=0,
                                         rope_parameters=dict(rope_type="dynamic", rope_theta=10000.0, alpha=1000.0, factor=1.0,
                                                              mrope_section=[2, 2, 2, 2])),
                        vision_config=dict(hidden_size=32, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
                                           patch_size=2, out_hidden_size=64, max_image_size=8, img_max_token_num=4)), 1),
    "paddleocr": ("PaddleOCRVLForConditionalGeneration", "PaddleOCRVLConfig",
                  dict(text_config=dict(SMALL, head_dim=16, rope_parameters=dict(rope_type="default", rope_theta=10000.0,
                                                                                 mrope_section=[2, 3, 3])),
                       vision_config=dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
                                          image_size=4, patch_size=2)), 1),
    "phimoe": ("PhimoeForCausalLM", "PhimoeConfig", dict(SMALL, num_local_experts=4, num_experts_per_tok=2, attention_bias=True, lm_head_bias=True), 1),
    "granite_swa": ("GraniteSWAForCausalLM", "GraniteSWAConfig",
                    dict(SMALL, num_hidden_layers=4, sliding_window=8, embedding_multiplier=3.0, residual_multiplier=0.5,
                         logits_scaling=2.0, attention_multiplier=0.2, layer_rope_theta=[0, 10000.0, 10000.0, 10000.0]), 1),
    "granite_swa+moe": ("GraniteMoeSWAForCausalLM", "GraniteMoeSWAConfig",
                        dict(SMALL, num_hidden_layers=4, sliding_window=8, embedding_multiplier=3.0, residual_multiplier=0.5,
                             logits_scaling=2.0, attention_multiplier=0.2, num_local_experts=4, num_experts_per_tok=2,
                             shared_intermediate_size=40), 1),
    "bailingmoe3": ("BailingHybridForCausalLM", "BailingHybridConfig",
                    dict(SMALL, num_hidden_layers=4, num_key_value_heads=4, kv_lora_rank=32, qk_rope_head_dim=8, qk_nope_head_dim=16,
                         v_head_dim=16, num_local_experts=4, n_shared_experts=1, n_group=1, topk_group=1, first_k_dense_replace=1,
                         head_dim=16, layer_group_size=4, pad_token_id=0, num_mtp_layers=0, **MOE), 1),
    "t5encoder": ("T5EncoderModel", "T5Config", dict(vocab_size=96, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4), 1),
    "deepseek2+glm": ("Glm4MoeLiteForCausalLM", "Glm4MoeLiteConfig",
                      dict(SMALL, num_key_value_heads=4, q_lora_rank=24, kv_lora_rank=32, qk_rope_head_dim=8, qk_nope_head_dim=16,
                           v_head_dim=16, n_routed_experts=4, n_shared_experts=1, n_group=1, topk_group=1, pad_token_id=0,
                           routed_scaling_factor=1.8, mlp_layer_types=["dense", "sparse"], **MOE), 1),
    "deepseek2+youtu": ("YoutuForCausalLM", "YoutuConfig",
                        dict(SMALL, num_key_value_heads=4, q_lora_rank=24, kv_lora_rank=32, qk_rope_head_dim=8,
                             qk_nope_head_dim=16, v_head_dim=16), 1),
    "glm4moe+solar": ("SolarOpenForCausalLM", "SolarOpenConfig",
                      dict(SMALL, head_dim=16, n_routed_experts=4, n_shared_experts=1, n_group=1, topk_group=1, pad_token_id=0,
                           norm_topk_prob=True, routed_scaling_factor=1.5, **MOE), 1),
    "deepseek32": ("DeepseekV32ForCausalLM", "DeepseekV32Config",
                   dict(SMALL, num_key_value_heads=4, q_lora_rank=24, kv_lora_rank=32, qk_rope_head_dim=8, qk_nope_head_dim=16,
                        v_head_dim=16, n_routed_experts=8, n_shared_experts=1, n_group=2, topk_group=1, first_k_dense_replace=1,
                        rope_parameters=dict(YARN, mscale=1.0, mscale_all_dim=1.0), **INDEXER, **MOE), 1),
    "glm-dsa": ("GlmMoeDsaForCausalLM", "GlmMoeDsaConfig",
                dict(SMALL, num_hidden_layers=4, num_key_value_heads=4, q_lora_rank=24, kv_lora_rank=32, qk_rope_head_dim=8,
                     qk_nope_head_dim=16, v_head_dim=16, n_routed_experts=4, n_shared_experts=1, first_k_dense_replace=1,
                     indexer_types=["full", "shared", "full", "shared"], **INDEXER, **MOE), 1),
    "minimax-m3": ("MiniMaxM3SparseForConditionalGeneration", "MiniMaxM3VLConfig",
                   dict(text_config=dict(SMALL, num_hidden_layers=3, head_dim=16, rotary_dim=8, dense_intermediate_size=80,
                                         shared_intermediate_size=96, num_local_experts=4, num_experts_per_tok=2,
                                         rope_parameters=dict(BASE, partial_rotary_factor=0.5), index_n_heads=2, index_head_dim=24,
                                         index_block_size=4, index_topk_blocks=2, index_local_blocks=1,
                                         layer_types=["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
                                         mlp_layer_types=["dense", "sparse", "sparse"]),
                        vision_config=dict(hidden_size=12, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
                                           image_size=4, patch_size=2),
                        projector_hidden_size=8), 0),
    "deepseek4": ("DeepseekV4ForCausalLM", "DeepseekV4Config",
                  dict(without(SMALL, "num_key_value_heads", "intermediate_size"), num_hidden_layers=4, head_dim=32, q_lora_rank=24,
                       n_routed_experts=LISTED, partial_rotary_factor=0.25, sliding_window=12, o_groups=2, o_lora_rank=12,
                       layer_types=["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention",
                                    "compressed_sparse_attention"],
                       mlp_layer_types=["hash_moe", "moe", "moe", "moe"], compress_rope_theta=160.0, hc_sinkhorn_iters=3,
                       hc_eps=0.001, swiglu_limit=0.5, rope_parameters=YARN, **dict(INDEXER, index_n_heads=16), **MOE), 1),
    "hy_v4": ("HYV4ForCausalLM", "HYV4Config",
              dict(SMALL, num_hidden_layers=4, q_lora_rank=24, kv_lora_rank=32, qk_rope_head_dim=8, qk_nope_head_dim=16,
                   v_head_dim=16, n_routed_experts=4, n_shared_experts=1, mlp_layer_types=["dense"] + ["sparse"] * 3,
                   indexer_types=["full", "shared", "full", "shared"], hc_magnitude=1.7, hc_eps=0.001, swiglu_limit=0.5,
                   pad_token_id=0, **INDEXER, **MOE), 1),
    "glm5-next": ("Glm5NextForConditionalGeneration", "Glm5NextConfig",
                  dict(text_config=dict(SMALL, num_hidden_layers=4, num_key_value_heads=4, q_lora_rank=24, kv_lora_rank=32,
                                        qk_nope_head_dim=16, v_head_dim=16, n_routed_experts=4, n_shared_experts=1,
                                        linear_head_dim=16, linear_num_heads=4, linear_lower_bound=-2.0, hc_sinkhorn_iters=3,
                                        hc_eps=0.001, swiglu_limit=0.5, index_kpool=2, pad_token_id=0,
                                        layer_types=["linear_attention"] + ["indexed_attention"] * 3,
                                        mlp_layer_types=["dense"] + ["sparse"] * 3,
                                        indexer_types=["full", "full", "shared", "full"], **dict(INDEXER, index_topk=8), **MOE),
                       vision_config=dict(hidden_size=8, intermediate_size=8, depth=1, num_heads=1, patch_size=2, image_size=4,
                                          out_hidden_size=8, projection_intermediate_size=8)), 1),
    "dots3note": ("Dots3NoteForCausalLM", "Dots3NoteTextConfig",
                  dict(SMALL, num_hidden_layers=4, num_key_value_heads=4, q_lora_rank=24, kv_lora_rank=32, qk_rope_head_dim=8,
                       qk_nope_head_dim=16, v_head_dim=16, head_dim=24, n_routed_experts=4, n_shared_experts=1,
                       shared_experts_intermediate_size=48, sliding_window=6, routed_scaling_factor=1.5, pad_token_id=0,
                       layer_types=["indexed_attention", "sliding_attention"] * 2, mlp_layer_types=["dense"] + ["sparse"] * 3,
                       swa_num_attention_heads=2, swa_num_key_value_heads=2, swa_q_lora_rank=24, swa_kv_lora_rank=20, swa_head_dim=20,
                       swa_qk_nope_head_dim=12, swa_v_head_dim=12, swa_rope_theta=100.0, **INDEXER, **MOE), 1),
    "t5+umt5": ("UMT5ForConditionalGeneration", "UMT5Config",
                dict(vocab_size=96, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, decoder_start_token_id=0), 1),
    "t5+mt5": ("MT5ForConditionalGeneration", "MT5Config",
               dict(vocab_size=96, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, decoder_start_token_id=0), 1),
    "granitemoe+shared": ("GraniteMoeSharedForCausalLM", "GraniteMoeSharedConfig",
                          dict(SMALL, num_local_experts=4, num_experts_per_tok=2, attention_multiplier=0.2, shared_intermediate_size=40,
                               embedding_multiplier=3.0, residual_multiplier=0.5, logits_scaling=2.0), 1),
    "mamba+falcon": ("FalconMambaForCausalLM", "FalconMambaConfig",
                     dict(vocab_size=96, hidden_size=64, num_hidden_layers=2, state_size=8, time_step_rank=4), 1),
    "bert+xlm-roberta": ("XLMRobertaModel", "XLMRobertaConfig",
                         dict(without(SMALL, "num_key_value_heads"), vocab_size=97, pad_token_id=1, type_vocab_size=1), 1),
    "bert+roberta": ("RobertaModel", "RobertaConfig", dict(without(SMALL, "num_key_value_heads"), vocab_size=97, pad_token_id=1, type_vocab_size=1), 1),
    "jina-bert-v3": ("JinaEmbeddingsV3Model", "JinaEmbeddingsV3Config", dict(without(SMALL, "num_key_value_heads")), 1),
    "gemma-embedding": ("Gemma3TextModel", "Gemma3TextConfig",
                        dict(SMALL, num_hidden_layers=7, head_dim=32, sliding_window=8, query_pre_attn_scalar=32,
                             use_bidirectional_attention=True), 0),
    "modern-bert": ("ModernBertModel", "ModernBertConfig",
                    dict(without(SMALL, "num_key_value_heads"), num_hidden_layers=4, local_attention=8, pad_token_id=0), 1),
}


def spread(name, shape, centre):
    """Centre and spread of a tensor's values: norms near their centre, matrices of variance 1/fan-in."""
    # The name of a block, not of a norm.
    low = name.lower().replace("norm_attn_norm.", "")
    if name.endswith("tid2eid"):
        return 0.0, float(LISTED)
    if low.endswith("scale") and "hc_" in low or name.endswith(("layer_scalar", "router.scale", "per_expert_scale", "correct_output_scale")) or low == "emb_ln.weight":
        return 1.0, 0.3
    if name.endswith(("A_log", "A_logs")):
        return 0.3, 0.8
    if name.endswith((".D", "dt_bias")):
        return 1.0, 0.5
    if "conv" in low and name.endswith("weight") and len(shape) >= 2:
        return 0.0, round((3.0 / max(shape[1:])) ** 0.5, 6)
    if "norm" in low or ".ln_" in low or "layernorm" in low or low.endswith("ln_f.weight"):
        # A centre may be the end of the one name whose weight is no distance from 1.
        centre = low.endswith(centre) if isinstance(centre, str) else centre
        return (0.0, 0.2) if name.endswith("bias") else (float(centre or "linear_attn" in name), 0.3)
    if name.endswith("e_score_correction_bias"):
        return 0.0, 0.1
    if name.endswith("bias") or "sinks" in low:
        return 0.0, 0.2
    if low.endswith("_coefs.weight"):
        return 0.0, 0.2
    if "embed" in low and "unembed" not in low or "wte" in low or "wpe" in low or low.startswith("shared."):
        return 0.0, 1.0
    return 0.0, round((3.0 / (shape[-1] if shape else 1)) ** 0.5, 6)


def build(name, folder):
    """A checkpoint with weights from names; its tensors with their spreads."""
    model_class, config_class, settings, centre = MODELS[name]
    config = getattr(transformers, config_class)(**settings)
    torch.manual_seed(0)
    model = getattr(transformers, model_class)(config).float().eval()
    model.save_pretrained(folder)
    tensors = {}
    for file in sorted(f for f in os.listdir(folder) if f.endswith(".safetensors")):
        with safe_open(os.path.join(folder, file), "pt") as f:
            for key in f.keys():
                if not key.endswith(COMPUTED):
                    tensors[key] = list(f.get_slice(key).get_shape())
    rules = {key: spread(key, shape, centre) for key, shape in tensors.items()}
    weights = {key: values(key, shape, rules[key]) for key, shape in tensors.items()}
    for file in os.listdir(folder):
        if "safetensors" in file:
            os.remove(os.path.join(folder, file))
    save_file(weights, os.path.join(folder, "model.safetensors"), {"format": "pt"})
    with open(os.path.join(folder, "config.json")) as f:
        config = json.load(f)
    config.pop("transformers_version", None)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f, indent=1)
    # Saved maps of experts are transposed and fused on the way back in, so the model is read again.
    model, info = getattr(transformers, model_class).from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    missing = [k for k in info["missing_keys"] if not k.endswith(COMPUTED)]
    assert not missing and not info["unexpected_keys"], info
    return model.eval(), config, {key: [tensors[key], *rules[key]] for key in tensors}


def golden(name, out, seed=7):
    positions = POSITIONS.get(name, 24)
    with tempfile.TemporaryDirectory() as folder:
        model, config, tensors = build(name, folder)
        text = config.get("text_config", config)
        fed = torch.tensor([ids(seed, positions, text["vocab_size"])])
        with torch.no_grad():
            result = model(input_ids=fed) if not config.get("is_encoder_decoder") else model(
                input_ids=fed, decoder_input_ids=torch.tensor([ids(seed + 1, positions // 2, text["vocab_size"])]))
        rows = "logits" if hasattr(result, "logits") else "vectors"
        rows = "decoder" if config.get("is_encoder_decoder") else rows
        found = (result.logits if hasattr(result, "logits") else result.last_hidden_state)[0].float().numpy()
    assert np.isfinite(found).all()
    stride = max(1, found.shape[1] // 24)
    if "vocabulary_map" in config:
        # Thousands of names that only the tokenizer reads.
        config["vocabulary_map"] = {}
    with open(os.path.join(out, name + ".json"), "w") as f:
        head = dict(oracle=f"Transformers {transformers.__version__}", rows=rows, positions=positions, seed=seed,
                    stride=stride)
        lines = ",\n".join(f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in tensors.items())
        config = json.dumps(config, indent=1).replace("\n", "\n  ")
        head = json.dumps(head, indent=2)[:-2]
        f.write(f'{head},\n  "config": {config},\n  "tensors": {{\n{lines}\n  }}\n}}\n')
    np.ascontiguousarray(found[:, ::stride]).astype("<f4").tofile(os.path.join(out, name + ".f32"))
    return float(found.std())


def main(args):
    if args == ["--list"]:
        for name, (model, config, _, _) in MODELS.items():
            there = hasattr(transformers, model) and hasattr(transformers, config)
            print(f"{name:<20} {model:<34} {'builds' if there else 'not in this Transformers'}")
        return
    if args[0] == "--save":
        for name in args[2:]:
            build(name, os.path.join(args[1], name))
        return
    for name in args[1:] or MODELS:
        try:
            print(f"{name:<24} rows of deviation {golden(name, args[0]):.3f}", flush=True)
        except Exception as error:
            print(f"{name:<24} {type(error).__name__}: {error}", flush=True)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    main(sys.argv[1:])
