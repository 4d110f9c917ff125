use @name@_network::Networks;

fn main() {
    let mut networks = Networks::take().expect("taken once");
@example@}
