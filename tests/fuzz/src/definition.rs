//! The parser of probe definitions on any text.

use probe_trace::def::{Definition, Glob};

/// Parses; what is an error points into the text, what is a definition keeps it.
pub fn parse(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match Definition::parse(&text, probe_trace::registers()) {
        Ok(definition) => {
            assert_eq!(definition.text, text);
            let (start, end) = definition.place_span;
            assert!(text.get(start..end).is_some(), "the place is a part of the text");
            let again = Definition::parse(&text, probe_trace::registers());
            assert!(again.is_ok_and(|again| again == definition), "parsing twice");
        }
        Err(error) => assert!(!error.to_string().is_empty() && !error.marker().contains('\0')),
    }
    let (pattern, name) = text.split_once('\n').unwrap_or((&text, &text));
    if Glob::new(name).matches(name) {
        // What matches itself is matched by everything's pattern, too.
        assert!(Glob::new("*").matches(name));
    }
    let _ = Glob::new(pattern).matches(name);
}
