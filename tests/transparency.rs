//! What a backend's transparency test has compared: states by class of instruction and way of execution.
//!
//! Included by the native tests of every backend, so that all hold the same: each class that the decoder
//! tells apart is executed, in each way that its plan allows, from thousands of states.

use probe_core::arch::Method;
use std::collections::BTreeMap;

/// How many states each class is compared from, at least, in each way.
pub(crate) const LEAST_STATES: usize = 2000;

/// How an instruction is executed beside the bare run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Way {
    /// Its effect on the registers.
    Emulated,
    /// In a slot that ends in a jump back.
    Boosted,
    /// In a slot that ends in a breakpoint.
    Stepped,
}

impl Way {
    /// What a plan allows.
    pub(crate) fn all(method: Method) -> &'static [Self] {
        match method {
            Method::Simulate => &[Self::Emulated],
            Method::Boost => &[Self::Boosted, Self::Stepped],
            Method::Step => &[Self::Stepped],
        }
    }
}

/// Names the classes of a backend's plans, each with its method: `class`, a match over all of them, and
/// `CLASSES`.
#[macro_export]
macro_rules! classes {
    ($plan:ty: $($pattern:pat => $name:literal $method:ident,)*) => {
        /// The class of a plan.
        fn class(plan: &$plan) -> &'static str {
            match plan {
                $($pattern => $name,)*
            }
        }

        /// All classes.
        const CLASSES: &[(&str, probe_core::arch::Method)] =
            &[$(($name, probe_core::arch::Method::$method),)*];
    };
}

/// Counted comparisons.
pub(crate) struct Coverage {
    classes: &'static [(&'static str, Method)],
    states: BTreeMap<(&'static str, Way), usize>,
}

impl Coverage {
    /// Nothing compared yet.
    pub(crate) fn new(classes: &'static [(&'static str, Method)]) -> Self {
        Self { classes, states: BTreeMap::new() }
    }

    /// Counts `states` comparisons.
    pub(crate) fn add(&mut self, class: &'static str, way: Way, states: usize) {
        *self.states.entry((class, way)).or_default() += states;
    }

    /// Prints the table.
    ///
    /// # Panics
    /// If a class has fewer than [`LEAST_STATES`] in one of its ways, unless `absent` names it, with the
    /// reason; if it is absent for no reason; if it was executed in another way than its method says.
    pub(crate) fn finish(self, absent: &[(&str, &str)]) {
        let mut wrong = Vec::new();
        println!("{:32} {:>9} {:>9} {:>9}", "class", "emulated", "boosted", "stepped");
        for (class, method) in self.classes {
            let states = |way| self.states.get(&(*class, way)).copied().unwrap_or(0);
            let row = [Way::Emulated, Way::Boosted, Way::Stepped].map(states);
            let reason = absent.iter().find(|(name, _)| name == class).map_or("", |(_, reason)| *reason);
            println!("{class:32} {:>9} {:>9} {:>9} {reason}", row[0], row[1], row[2]);
            for way in [Way::Emulated, Way::Boosted, Way::Stepped] {
                let is_wanted = Way::all(*method).contains(&way) && reason.is_empty();
                let is_enough = if is_wanted { states(way) >= LEAST_STATES } else { states(way) == 0 };
                if !is_enough {
                    wrong.push(format!("{class}: {} states {way:?}", states(way)));
                }
            }
        }
        let known = |class| self.classes.iter().any(|(name, _)| name == class);
        wrong.extend(
            self.states.keys().filter(|(class, _)| !known(class)).map(|(class, _)| class.to_string()),
        );
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}
