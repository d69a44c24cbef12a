//! Oracle drivers, fixtures and the conformance suite.
