//! Block formats: layouts, exact dequantisers and quantisers.
