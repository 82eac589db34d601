//! The ways in which a program is traced.

/// What is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Where {
    /// Every function of the C library.
    Libc,
    /// Every function of the program itself.
    Program,
}

/// One way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mode {
    /// What is typed after `--mode`.
    pub(crate) name: &'static str,
    /// `p` or `r`.
    pub(crate) kind: char,
    /// What is probed.
    pub(crate) place: Where,
    /// Whether a jump may stand where it can.
    pub(crate) has_jumps: bool,
    /// Whether the short form has it.
    pub(crate) is_short: bool,
}

/// All of them.
pub(crate) const MODES: [Mode; 8] = [
    mode("p-libc-jump", 'p', Where::Libc, true, true),
    mode("p-libc-trap", 'p', Where::Libc, false, false),
    mode("r-libc-jump", 'r', Where::Libc, true, false),
    mode("r-libc-trap", 'r', Where::Libc, false, false),
    mode("p-program-jump", 'p', Where::Program, true, false),
    mode("p-program-trap", 'p', Where::Program, false, false),
    mode("r-program-jump", 'r', Where::Program, true, false),
    mode("r-program-trap", 'r', Where::Program, false, true),
];

const fn mode(name: &'static str, kind: char, place: Where, has_jumps: bool, is_short: bool) -> Mode {
    Mode { name, kind, place, has_jumps, is_short }
}

impl Mode {
    /// The name of the object whose functions are probed, in a program's own words.
    pub(crate) fn object<'a>(&self, program: &'a str) -> &'a str {
        match self.place {
            Where::Libc => "libc.so.6",
            Where::Program => program,
        }
    }

    /// What `probe trace` is told, before the program.
    pub(crate) fn arguments(&self, program: &str) -> Vec<String> {
        let definition = format!("{} {}:*", self.kind, self.object(program));
        let mut arguments = vec!["-p".to_owned(), definition];
        arguments.extend((!self.has_jumps).then(|| "--no-jumps".to_owned()));
        arguments
    }
}
