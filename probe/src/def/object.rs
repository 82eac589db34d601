//! Which object a definition means: one rule for the agent, which has loaded objects, and for `list` and
//! `explain`, which have files.

use probe_definitions::Glob;
use std::path::Path;

/// What names an object.
pub trait HasFile {
    /// The name of its file, or the name under which it was asked for.
    fn file_name(&self) -> &str;
    /// Its file.
    fn path(&self) -> &Path;
}

/// What a name means among some objects.
#[derive(Debug, PartialEq, Eq)]
pub enum Named<T> {
    /// This one.
    One(T),
    /// These begin so.
    Several(Vec<T>),
    /// All of these: it is a pattern that they match.
    All(Vec<T>),
    /// None.
    Nothing,
}

/// How well a file's name fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// It is the name.
    Exact,
    /// The name goes on with a dot: `libc` and `libc.so` for `libc.so.6`, `python3` for `python3.11`.
    Begins,
    /// It is another one.
    No,
}

/// How well the file name `name` fits what was asked for.
pub fn fit(name: &str, wanted: &str) -> Fit {
    match name.strip_prefix(wanted) {
        Some("") => Fit::Exact,
        Some(rest) if rest.starts_with('.') && !wanted.is_empty() => Fit::Begins,
        _ => Fit::No,
    }
}

/// The object that `wanted` names: by its path, by its file name, or by the beginning of its file name up to
/// a dot, if only one begins so. A pattern names all whose file names match, or whose paths do if it has a
/// `/`.
pub fn object_named<'a, T: HasFile>(objects: impl IntoIterator<Item = &'a T>, wanted: &str) -> Named<&'a T> {
    let mut begins = Vec::new();
    let pattern = Glob::is_pattern(wanted).then(|| Glob::new(wanted));
    let mut all = Vec::new();
    let path = wanted.contains('/').then(|| Path::new(wanted));
    let real_path = path.and_then(|path| path.canonicalize().ok());
    for object in objects {
        let fit = match (path, &real_path) {
            (None, _) => fit(object.file_name(), wanted),
            (Some(_), Some(real)) if object.path().canonicalize().is_ok_and(|path| path == *real) => {
                Fit::Exact
            }
            (Some(path), None) if path == object.path() => Fit::Exact,
            _ => Fit::No,
        };
        match fit {
            Fit::Exact => return Named::One(object),
            Fit::Begins => begins.push(object),
            Fit::No => {}
        }
        let is_match = |pattern: &Glob| match path {
            None => pattern.matches(object.file_name()),
            Some(_) => pattern.matches(&object.path().to_string_lossy()),
        };
        if pattern.as_ref().is_some_and(is_match) {
            all.push(object);
        }
    }
    match begins.len() {
        0 if !all.is_empty() => Named::All(all),
        0 => Named::Nothing,
        1 => Named::One(begins.remove(0)),
        _ => Named::Several(begins),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct File(&'static str);

    impl HasFile for File {
        fn file_name(&self) -> &str {
            self.0.rsplit('/').next().unwrap_or(self.0)
        }

        fn path(&self) -> &Path {
            Path::new(self.0)
        }
    }

    const LOADED: [File; 5] = [
        File("/bin/work"),
        File("/no/libc.so.6"),
        File("/no/libcrypt.so.1"),
        File("/no/libx.so.1"),
        File("/no/libx.so.1.2"),
    ];

    fn named(wanted: &str) -> Vec<&'static str> {
        match object_named(&LOADED, wanted) {
            Named::One(one) => vec![one.0],
            Named::Several(several) | Named::All(several) => several.into_iter().map(|file| file.0).collect(),
            Named::Nothing => Vec::new(),
        }
    }

    #[test]
    fn an_object_goes_by_its_path_its_name_or_the_beginning_up_to_a_dot() {
        for wanted in ["libc", "libc.so", "libc.so.6", "/no/libc.so.6"] {
            assert_eq!(named(wanted), ["/no/libc.so.6"], "{wanted}");
        }
        assert_eq!(named("libx.so.1"), ["/no/libx.so.1"], "an exact name before what begins so");
        assert_eq!(named("libx"), ["/no/libx.so.1", "/no/libx.so.1.2"]);
        for (wanted, all) in [
            ("lib*.so*", &LOADED[1..]),
            ("libc*", &LOADED[1..3]),
            ("/no/libx*", &LOADED[3..]),
            ("*/w?rk", &LOADED[..1]),
        ] {
            let Named::All(found) = object_named(&LOADED, wanted) else { panic!("{wanted}") };
            assert_eq!(
                found.iter().map(|file| file.0).collect::<Vec<_>>(),
                all.iter().map(|f| f.0).collect::<Vec<_>>()
            );
        }
        for wanted in ["lib?", "/lib*", "lib", "libcry", "libc.so.", "/libc.so.6", ""] {
            assert!(named(wanted).is_empty(), "{wanted}");
        }
    }
}
