//! Importance matrices in both formats, read, written and read again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tokkata::importance::Importance;

fuzz_target!(|data: &[u8]| {
    let Ok(read) = Importance::from_bytes(data, "<memory>") else {
        return;
    };
    let mut sum = Importance::default();
    // Counts and sums that do not go together are an error, and no panic.
    let _ = sum.merge(read.clone(), "<memory>", 512);
    for inputs in read.entries.values() {
        assert_eq!(inputs.means().len(), inputs.sums.len());
    }
    let old = read.to_old();
    if !read.entries.is_empty()
        && read
            .entries
            .values()
            .any(|i| i.counts.iter().any(|&n| n > 0))
    {
        let names = Importance::from_bytes(&old, "<memory>").map(|again| again.entries.len());
        assert!(names.is_ok_and(|n| n <= read.entries.len()));
    }
});
