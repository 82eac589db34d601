#[path = "../tests/common/mod.rs"]
mod common;
fn main() {
    let long = std::env::args().nth(1).unwrap() == "64";
    for l in std::io::stdin().lines() {
        let l = l.unwrap();
        let b: Vec<u8> = l.split(' ').map(|x| u8::from_str_radix(x, 16).unwrap()).collect();
        println!(
            "{}",
            if long {
                common::spelt::<probe_x86_decode::LongMode>(&b)
            } else {
                common::spelt::<probe_x86_decode::ProtectedMode>(&b)
            }
        );
    }
}
