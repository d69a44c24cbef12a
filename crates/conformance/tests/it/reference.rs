//! The suite on the reference itself, in f32.

use tokkata_backend_ref::RefBackend;
use tokkata_conformance::ops::Subject;

tokkata_conformance::suite!(Subject::new(Box::new(RefBackend::default())));
