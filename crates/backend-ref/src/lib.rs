//! Scalar interpreter of the program: the meaning of each op.
