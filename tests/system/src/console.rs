//! The serial console.

use crate::arch::{Machine, Native};
use crate::lock::SpinLock;
use core::fmt::{self, Write};

struct Serial;

static SERIAL: SpinLock<Serial> = SpinLock::new(Serial);

impl Write for Serial {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.bytes().for_each(Native::put_byte);
        Ok(())
    }
}

/// Prints a whole message at once.
pub fn print(message: fmt::Arguments<'_>) {
    // Writing to the serial port cannot fail.
    let _ = SERIAL.lock().write_fmt(message);
}

/// Takes the console away from whoever was printing: for the panic handler.
pub fn seize() {
    SERIAL.seize();
}

/// Prints a line on the serial console.
#[macro_export]
macro_rules! println {
    ($($arg:tt)*) => { $crate::console::print(format_args!("{}\n", format_args!($($arg)*))) };
}

/// Prints on the serial console.
#[macro_export]
macro_rules! print {
    ($($arg:tt)*) => { $crate::console::print(format_args!($($arg)*)) };
}
