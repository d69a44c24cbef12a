"""What openai's code hears with real weights. Usage: speech.py HF_FOLDER OUT.json SOUND.wav…

HF_FOLDER is what `whisper_ct2.py` wrote; needs the packages openai-whisper and torch. Sounds are 16-bit mono at 16 kHz, so that no decoder and
no resampler stands between. Each is heard at temperature 0, greedily and with five beams, with words; what OUT.json already has of
other sounds stays. A sound is known by the hash of its samples.
"""
import hashlib, json, sys, wave
from pathlib import Path
import numpy as np, torch, whisper
import whisper.decoding as dec
from whisper.model import ModelDimensions, Whisper

RENAMED = [("layers", "blocks"), ("fc1", "mlp.0"), ("fc2", "mlp.2"), ("final_layer_norm", "mlp_ln"), (".self_attn_layer_norm", ".attn_ln"),
           (".encoder_attn_layer_norm", ".cross_attn_ln"), (".self_attn.", ".attn."), (".encoder_attn.", ".cross_attn."), ("q_proj", "query"),
           ("k_proj", "key"), ("v_proj", "value"), ("out_proj", "out"), ("encoder.layer_norm.", "encoder.ln_post."),
           ("decoder.layer_norm.", "decoder.ln."), ("embed_positions.weight", "positional_embedding"), ("embed_tokens", "token_embedding")]

def loaded(folder):
    """openai's model with the weights of the folder, in single precision."""
    data = (folder / "model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    state = {}
    for name, about in json.loads(data[8:8 + size]).items():
        begin, end = (8 + size + at for at in about["data_offsets"])
        values = np.frombuffer(data[begin:end], "<f2").astype(np.float32).reshape(about["shape"])
        name = name.removeprefix("model.")
        for theirs, ours in RENAMED:
            name = name.replace(theirs, ours)
        state[name] = torch.from_numpy(values)
    c = json.loads((folder / "config.json").read_text())
    model = Whisper(ModelDimensions(
        n_mels=c["num_mel_bins"], n_audio_ctx=c["max_source_positions"], n_audio_state=c["d_model"], n_audio_head=c["encoder_attention_heads"],
        n_audio_layer=c["encoder_layers"], n_vocab=c["vocab_size"], n_text_ctx=c["max_target_positions"], n_text_state=c["d_model"],
        n_text_head=c["decoder_attention_heads"], n_text_layer=c["decoder_layers"]))
    model.load_state_dict(state)
    heads = torch.zeros(c["decoder_layers"], c["decoder_attention_heads"], dtype=torch.bool)
    for layer, head in json.loads((folder / "generation_config.json").read_text())["alignment_heads"]:
        heads[layer, head] = True
    model.register_buffer("alignment_heads", heads.to_sparse(), persistent=False)
    return model.eval()

# The leads of greedy choices over the next.
gaps = []
update = dec.GreedyDecoder.update
def watched(self, tokens, logits, sums):
    live = tokens[:, -1] != self.eot
    top = logits.topk(2).values
    gaps.extend((top[:, 0] - top[:, 1])[live].tolist())
    return update(self, tokens, logits, sums)
dec.GreedyDecoder.update = watched

# How far the best of finished beams is in front of the next.
ranks = []
rank = dec.MaximumLikelihoodRanker.rank
def ranked(self, tokens, sums):
    for t, s in zip(tokens, sums):
        scores = sorted((p / len(x) for p, x in zip(s, t) if len(x)), reverse=True)
        if len(scores) > 1:
            ranks.append(scores[0] - scores[1])
    return rank(self, tokens, sums)
dec.MaximumLikelihoodRanker.rank = ranked

def heard(model, samples, beams):
    gaps.clear(), ranks.clear()
    result = whisper.transcribe(model, torch.from_numpy(samples), temperature=0.0, beam_size=beams, word_timestamps=True, fp16=False)
    leads = gaps if beams is None else ranks
    out = dict(language=result["language"], text=result["text"], lead=float(f"{min(leads, default=0):.3g}"), segments=[])
    for s in result["segments"]:
        words = [[w["word"], round(float(w["start"]), 2), round(float(w["end"]), 2), round(float(w["probability"]), 4)] for w in s["words"]]
        out["segments"].append(dict(start=round(float(s["start"]), 2), end=round(float(s["end"]), 2), text=s["text"], tokens=s["tokens"],
                                    logprob=round(s["avg_logprob"], 5), no_speech=round(s["no_speech_prob"], 5), words=words))
    return out

def main(folder, out, *sounds):
    torch.set_grad_enabled(False)
    torch.set_num_threads(2)
    out = Path(out)
    model = loaded(Path(folder))
    known = json.loads(out.read_text()) if out.exists() else {}
    for sound in sounds:
        with wave.open(sound) as w:
            assert (w.getframerate(), w.getnchannels(), w.getsampwidth()) == (16000, 1, 2), sound
            data = w.readframes(w.getnframes())
        samples = np.frombuffer(data, "<i2").astype(np.float32) / 32768
        about = dict(sha256=hashlib.sha256(data).hexdigest(), seconds=round(len(samples) / 16000, 2))
        for name, beams in (("greedy", None), ("beams", 5)):
            about[name] = heard(model, samples, beams)
            print(Path(sound).stem, name, about[name]["language"], about[name]["lead"], about[name]["text"][:160], flush=True)
        known[Path(sound).stem] = about
        out.write_text(json.dumps(known, ensure_ascii=False, separators=(",", ":")))

if __name__ == "__main__":
    main(*sys.argv[1:])
