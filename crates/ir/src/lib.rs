//! The program: ops, plans, step state, model specification and the backend contract.
