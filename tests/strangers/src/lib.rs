//! Small hostile and odd programs (`programs/*.c`), bare and under `probe trace`. What there is to run is the
//! test program `strangers` in `tests`.
