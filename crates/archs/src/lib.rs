//! Architecture descriptors, their schema and the resolver.
