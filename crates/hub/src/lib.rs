//! Download, resume and cache of model files.
