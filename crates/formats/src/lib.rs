//! Readers and writers of model files.
