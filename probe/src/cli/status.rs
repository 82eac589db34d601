//! The exit statuses of the command, in one table: what is documented is what is returned.

/// How the command ends where it does not end as the program did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Status {
    /// Done, or the program ended with 0.
    Success = 0,
    /// What was asked for makes no sense.
    Usage = 2,
    /// A definition was planted nowhere.
    NotPlanted = 123,
    /// The command itself has failed.
    Failed = 125,
    /// The program is there and cannot be traced.
    NotTraceable = 126,
    /// There is no such program.
    NotFound = 127,
}

impl Status {
    /// The number that the parent sees.
    pub(super) const fn code(self) -> u8 {
        self as u8
    }
}

/// What the manual says of them.
#[cfg(all(test, target_pointer_width = "64"))]
impl Status {
    /// All of them, as the manual lists them.
    pub(super) const ALL: [Self; 6] =
        [Self::Success, Self::Usage, Self::NotPlanted, Self::Failed, Self::NotTraceable, Self::NotFound];

    /// What it says, for the manual.
    pub(super) const fn meaning(self) -> &'static str {
        match self {
            Self::Success => {
                "The program ended with 0 and every definition was planted somewhere; list and explain: what was asked for was printed."
            }
            Self::Usage => {
                "The command line or a definition is wrong, or list or explain found nothing. The program's main has not run."
            }
            Self::NotPlanted => {
                "The program ended with 0, but a definition was planted nowhere: its object was never loaded, or every function that its pattern matches was refused."
            }
            Self::Failed => {
                "The command itself failed: the agent did not start in the program, memory could not be had; or the program ended with 0 and its events could not be written."
            }
            Self::NotTraceable => {
                "The program was found and cannot be traced: it may not be executed, is set-uid, of Go, for another machine, built with AddressSanitizer (see NOTES of probe-trace(1)), or run by Valgrind."
            }
            Self::NotFound => "There is no such program.",
        }
    }
}
