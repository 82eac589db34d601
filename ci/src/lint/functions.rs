//! The functions of a source file, by its layout: rustfmt ends a function with a brace as far in as its first
//! line.

/// One function, with its signature and body.
#[derive(Debug)]
pub(crate) struct Function<'a> {
    pub(crate) name: &'a str,
    /// Its first line, counted from 1.
    pub(crate) first_line: usize,
    pub(crate) line_count: usize,
    pub(crate) is_unsafe: bool,
}

impl Function<'_> {
    /// Whether it contains this line, counted from 1.
    pub(crate) fn contains(&self, line: usize) -> bool {
        (self.first_line..self.first_line + self.line_count).contains(&line)
    }
}

/// All functions that have a body, nested ones too, in the order of their first lines.
pub(crate) fn functions_of(text: &str) -> Vec<Function<'_>> {
    let lines: Vec<&str> = text.lines().collect();
    let mut functions = Vec::new();
    for (first, line) in lines.iter().enumerate() {
        let Some((is_unsafe, name)) = signature(line.trim_start()) else { continue };
        let indent = &line[..line.len() - line.trim_start().len()];
        // A declaration without a body ends in a semicolon, on its own line or behind its arguments.
        let last = lines[first..].iter().position(|line| {
            line.strip_prefix(indent).is_some_and(|line| {
                line == "}" || (line.ends_with(['}', ';']) && line.starts_with(|c: char| !c.is_whitespace()))
            })
        });
        let Some(last) = last.filter(|&last| lines[first + last].ends_with('}')) else { continue };
        functions.push(Function { name, first_line: first + 1, line_count: last + 1, is_unsafe });
    }
    functions
}

/// Whether a function begins here: is it unsafe, and what is it called?
fn signature(line: &str) -> Option<(bool, &str)> {
    let mut is_unsafe = false;
    let mut words = line.split(' ');
    loop {
        match words.next()? {
            "unsafe" => is_unsafe = true,
            "pub" | "const" | "async" | "extern" | "default" => {}
            word if word.starts_with("pub(") || word.starts_with('"') || word == "in" => {}
            "fn" => break,
            _ => return None,
        }
    }
    let name = words.next()?;
    let end = name.find(|c: char| !c.is_alphanumeric() && !"_$".contains(c)).unwrap_or(name.len());
    (end > 0).then(|| (is_unsafe, &name[..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_with_their_ends() {
        let text = "trait T {\n    fn declared(&self);\n    fn long(\n        &self,\n    ) -> u8;\n\
                    \x20   fn one() {}\n}\n\npub(crate) unsafe extern \"C\" fn two<T>(\n    t: T,\n) {\n    \
                    fn inner() {\n    }\n}\n// fn comment() {\n";
        let found: Vec<_> = functions_of(text)
            .iter()
            .map(|function| (function.name, function.first_line, function.line_count, function.is_unsafe))
            .collect();
        assert_eq!(found, [("one", 6, 1, false), ("two", 9, 6, true), ("inner", 12, 2, false)]);
    }
}
