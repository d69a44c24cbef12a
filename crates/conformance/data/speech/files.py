"""Small files of every container and codec, of one signal, for crates/audio/tests/files.rs."""
import sys, av, numpy as np
from fractions import Fraction
from signals import sweep, noise
out = sys.argv[1]
n = 24000
s = (sweep(n, 1200, 5200, 12000) + noise(n, 3, 300)).astype(np.int16)  # at 48 kHz, half a second
def write(name, fmt, codec, rate=48000, bitrate=None, options=None, sfmt='s16', layout='mono', src=48000, data=s):
    with av.open(f"{out}/{name}", 'w', format=fmt) as c:
        st = c.add_stream(codec, rate=rate, layout=layout, options=options or {})
        if bitrate: st.bit_rate = bitrate
        st.format = sfmt if sfmt in [f.name for f in av.Codec(codec,'w').audio_formats] else av.Codec(codec,'w').audio_formats[0].name
        res = av.AudioResampler(format=st.format, layout=layout, rate=rate, frame_size=st.codec_context.frame_size or 0)
        f = av.AudioFrame.from_ndarray(data.reshape(1,-1), format='s16', layout='mono'); f.sample_rate = src; f.pts=0; f.time_base=Fraction(1,src)
        c0 = []
        for r in res.resample(f) + res.resample(None):
            for p in st.encode(r): c.mux(p)
        for p in st.encode(None): c.mux(p)
write('a.flac','flac','flac',rate=16000); write('a.mp3','mp3','libmp3lame',bitrate=48000)
write('a.opus','ogg','libopus',bitrate=24000); write('a.webm','webm','libopus',bitrate=32000)
write('silk.opus','ogg','libopus',bitrate=10000,options={'application':'voip','frame_duration':'60'})
write('a.m4a','ipod','aac',bitrate=48000,sfmt='fltp'); write('alac.m4a','ipod','alac',sfmt='s16p',rate=16000); write('a.mka','matroska','pcm_s16le',rate=16000)
write('a.ogg','ogg','vorbis',sfmt='fltp',layout='stereo',options={'strict':'-2'})
