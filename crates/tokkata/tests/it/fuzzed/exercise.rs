//! Uses an importance matrix in every way a program does. The fuzz target uses this file too.

use tokkata::importance::Importance;

/// A file in either format. Says whether it was read.
pub(crate) fn importance(data: &[u8]) -> bool {
    let Ok(read) = Importance::from_bytes(data, "<memory>") else {
        return false;
    };
    let mut sum = Importance::default();
    // Counts and sums that do not go together are an error, and no panic.
    let _ = sum.merge(read.clone(), "<memory>", 512);
    for inputs in read.entries.values() {
        assert_eq!(inputs.means().len(), inputs.sums.len());
    }
    let old = read.to_old();
    let mut counts = read.entries.values().flat_map(|i| &i.counts);
    if counts.any(|&n| n > 0) {
        let names = Importance::from_bytes(&old, "<memory>").map(|again| again.entries.len());
        assert!(names.is_ok_and(|n| n <= read.entries.len()));
    }
    true
}
