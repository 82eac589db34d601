//! Demangled names, in the forms that people type.

use std::fmt::Write;

/// Calls `form` with every demangled spelling of `name`: nothing for a name that is not mangled.
///
/// Rust: the path without the hash (`core::fmt::write`), and with it. C++: without and with parameters
/// (`ns::f`, `ns::f(int)`).
pub fn forms(name: &str, form: &mut dyn FnMut(&str)) {
    if let Ok(demangled) = rustc_demangle::try_demangle(name) {
        let mut text = String::new();
        let _ = write!(text, "{demangled:#}");
        form(&text);
        let short_len = text.len();
        text.clear();
        let _ = write!(text, "{demangled}");
        if text.len() != short_len {
            form(&text);
        }
    } else if name.starts_with("_Z")
        && let Ok(symbol) = cpp_demangle::Symbol::new(name)
    {
        let mut short = None;
        for options in [
            cpp_demangle::DemangleOptions::default().no_params().no_return_type(),
            cpp_demangle::DemangleOptions::default().no_return_type(),
        ] {
            if let Ok(text) = symbol.demangle_with_options(&options)
                && short.as_ref() != Some(&text)
            {
                form(&text);
                short = Some(text);
            }
        }
    }
}

/// The name as its programming language writes it, of a Rust name without the hash; `None` for one that is
/// not mangled.
#[must_use]
pub fn in_its_language(name: &str) -> Option<String> {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return Some(format!("{rust:#}"));
    }
    let symbol = cpp_demangle::Symbol::new(name.starts_with("_Z").then_some(name)?).ok()?;
    symbol.demangle_with_options(&cpp_demangle::DemangleOptions::default().no_return_type()).ok()
}

/// Whether `name` can only be a demangled one: mangled ones and those of C have none of these characters.
pub(crate) fn is_demangled(name: &str) -> bool {
    name.contains([':', '<', '(', ' ', '~'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(name: &str) -> Vec<String> {
        let mut found = Vec::new();
        forms(name, &mut |form| found.push(form.to_owned()));
        found
    }

    #[test]
    fn rust_names_come_with_and_without_hash() {
        assert_eq!(
            all("_ZN4core3fmt5write17h0123456789abcdefE"),
            ["core::fmt::write", "core::fmt::write::h0123456789abcdef"]
        );
        assert_eq!(all("_RNvCs1234_7mycrate3foo")[0], "mycrate::foo");
    }

    #[test]
    fn cpp_names_come_with_and_without_parameters() {
        assert_eq!(all("_ZN2ns1fEi"), ["ns::f", "ns::f(int)"]);
    }

    #[test]
    fn names_are_shown_as_their_language_writes_them() {
        let core = in_its_language("_ZN4core3fmt5write17h0123456789abcdefE");
        assert_eq!(core.as_deref(), Some("core::fmt::write"));
        assert_eq!(in_its_language("_ZN2ns1fEi").as_deref(), Some("ns::f(int)"));
        assert_eq!(in_its_language("malloc"), None);
    }

    #[test]
    fn c_names_have_no_other_form() {
        assert!(all("malloc").is_empty());
        assert!(!is_demangled("_ZN2ns1fEi") && is_demangled("ns::f"));
    }
}
