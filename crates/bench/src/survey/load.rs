//! One test inside a metadata target, as `lctl test_create` and its like make it: in directories that exist, on files that
//! stay or exist. Reports as Lustre's `lctl` does, whose output `mds-survey` parses.

use std::io::Write;
use std::time::Duration;

use anyhow::anyhow;
use host::survey::{Content, Folder, Order, Plan, Status, Test};

use super::{Ask, output, rate};
use crate::mdtest::run::date_of;
use crate::stop;

/// A test.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Load {
    /// The metadata target, by name.
    pub target: String,
    /// The test.
    pub test: Test,
    /// The number of threads.
    pub threads: u32,
    /// The directories; thread t works in number t modulo their count.
    pub folders: Vec<Folder>,
    /// The number in the name of the first file of the first thread.
    pub start: u64,
    /// The number of files of each thread.
    pub count: u64,
    /// Print the rate after so many seconds each.
    pub every: Option<usize>,
}

const PAUSE: Duration = Duration::from_millis(20);

impl Load {
    fn plan(&self) -> Plan {
        let content = match self.test {
            Test::Create | Test::Mkdir => Content::Made,
            Test::Lookup | Test::MdGetattr | Test::Setxattr | Test::Destroy | Test::Rmdir => Content::Found,
        };
        Plan {
            threads: self.threads,
            outstanding: 1,
            folders: self.folders.iter().copied().take(self.threads as usize).collect(),
            files: self.count.saturating_mul(self.threads.into()),
            start: self.start,
            content,
        }
    }

    /// Runs the test, and prints the rates of its seconds. Returns its figures.
    ///
    /// # Errors
    /// What went wrong, as a sentence.
    pub fn run(&self, ask: &Ask<'_>, out: &mut dyn Write) -> anyhow::Result<Status> {
        let ask = |order| ask(&self.target, order);
        ask(Order::Open(self.plan()))?;
        let result = self.opened(&ask, out);
        let closed = ask(Order::Close);
        while ask(Order::Status).is_ok_and(|status| status.running) {
            std::thread::sleep(PAUSE);
        }
        closed.and(result)
    }

    fn opened(&self, ask: &dyn Fn(Order) -> anyhow::Result<Status>, out: &mut dyn Write) -> anyhow::Result<Status> {
        let status = self.wait(ask, &mut |_| Ok(()))?;
        if let Some(failure) = status.failure {
            return Err(anyhow!(failure));
        }
        ask(Order::Run(self.test))?;
        let mut printed = 0;
        let status = self.wait(ask, &mut |status| {
            let Some(every) = self.every else { return Ok(()) };
            while let Some(samples) = status.samples.get(printed..printed + every) {
                let rate = samples.iter().sum::<f64>() / every as f64;
                writeln!(out, "{0}/{0} Total: {rate:.6}/second", self.threads).map_err(output)?;
                out.flush().map_err(output)?;
                printed += every;
            }
            Ok(())
        })?;
        match &status.failure {
            Some(failure) => Err(anyhow!("{failure}; {}", so_far(&status))),
            None if stop::requested() => Err(anyhow!("stopped; {}", so_far(&status))),
            None => Ok(status),
        }
    }

    /// Waits until nothing is running. `look` is shown the progress.
    fn wait(
        &self,
        ask: &dyn Fn(Order) -> anyhow::Result<Status>,
        look: &mut dyn FnMut(&Status) -> anyhow::Result<()>,
    ) -> anyhow::Result<Status> {
        let mut stopped = false;
        loop {
            let mut status = ask(Order::Status)?;
            let seen = look(&status);
            if (seen.is_err() || stop::requested()) && !std::mem::replace(&mut stopped, true) {
                ask(Order::Stop)?;
                status = ask(Order::Status)?;
            }
            if !status.running {
                return seen.map(|()| status);
            }
            std::thread::sleep(PAUSE);
        }
    }
}

fn so_far(status: &Status) -> String {
    format!("{} operations done, {:.2} a second", status.done, rate(std::slice::from_ref(status)))
}

/// The last line of several threads.
pub fn total(count: u64, threads: u32, seconds: f64) -> String {
    let rate = if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
    format!("Total: total {count} threads {threads} sec {seconds:.6} {rate:.6}/second")
}

/// The last line of one thread.
pub fn one(verb: &str, count: u64, seconds: f64) -> String {
    let rate = if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs();
    format!("{verb}: {count} in {seconds:.3}s ({rate:.3} /s): {}", ctime(now))
}

/// A time in seconds since 1970 as ctime(3) prints it, in UTC: `Sun Nov 29 00:38:33 2026`.
fn ctime(seconds: u64) -> String {
    const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (year, month, day, time) = date_of(seconds);
    format!("{} {} {day:2} {time} {year}", WEEKDAYS[(seconds / 86400 % 7) as usize], MONTHS[month])
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use proto::Fid;

    use super::*;

    fn load(test: Test) -> Load {
        let folder = |number| Folder::new(Fid::new(Fid::SEQ_FIRST, number), 0, 1, 0);
        Load {
            target: "fs-MDT0001".to_owned(),
            test,
            threads: 2,
            folders: (1..=3).map(folder).collect(),
            start: 2,
            count: 10,
            every: Some(2),
        }
    }

    #[test]
    fn rates_are_printed_as_lctl_does() {
        let orders = RefCell::new(Vec::new());
        // After the second question the test has run for five seconds.
        let ask = |target: &str, order: Order| {
            assert_eq!(target, "fs-MDT0001");
            orders.borrow_mut().push(order);
            let running = orders.borrow().len() == 4;
            let samples = if running { vec![100.0, 200.0, 50.0] } else { vec![100.0, 200.0, 50.0, 60.0, 70.0] };
            Ok(Status { running, done: 20, seconds: 5.0, samples, failure: None })
        };
        let mut out = Vec::new();
        let status = load(Test::Create).run(&ask, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "2/2 Total: 150.000000/second\n2/2 Total: 55.000000/second\n");
        assert_eq!(total(status.done, 2, status.seconds), "Total: total 20 threads 2 sec 5.000000 4.000000/second");
        assert!(one("test_create", 20, 5.0).starts_with("test_create: 20 in 5.000s (4.000 /s): "));
        let orders = orders.into_inner();
        let Order::Open(plan) = &orders[0] else { panic!("{orders:?}") };
        assert_eq!(
            (plan.files, plan.folders.len(), plan.content),
            (20, 2, Content::Made),
            "no more directories than threads"
        );
        assert!(orders.contains(&Order::Run(Test::Create)) && orders.contains(&Order::Close));
    }

    #[test]
    fn a_date_is_that_of_ctime() {
        assert_eq!(ctime(0), "Thu Jan  1 00:00:00 1970");
        assert_eq!(ctime(1_795_912_713), "Sun Nov 29 00:38:33 2026");
    }

    #[test]
    fn a_failure_ends_the_test_and_the_sessions() {
        let closed = RefCell::new(false);
        let ask = |_: &str, order: Order| {
            *closed.borrow_mut() |= order == Order::Close;
            Ok(Status { failure: Some("lookup of 'f3' failed".to_owned()), ..Status::default() })
        };
        let error = load(Test::Lookup).run(&ask, &mut Vec::new()).unwrap_err().to_string();
        assert!(error.starts_with("lookup of 'f3' failed"), "{error}");
        assert!(closed.into_inner());
    }
}
