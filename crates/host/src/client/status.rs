//! What can be asked of a running client, and its parameters.

use proto::Errno;

use super::{Mount, Phase};

impl Mount {
    /// Parameters of the client that match `pattern`, by name.
    pub fn get_params(&self, pattern: &str) -> Vec<(String, String)> {
        let mut found = crate::admin::of_process(pattern, std::iter::empty());
        let of_machine = self.shared.state.lock().machine.run(|machine| machine.get_params(pattern));
        found.extend(of_machine.into_iter().flatten());
        found
    }

    /// The mount's own name among devices, and its other devices.
    pub fn devices(&self) -> (String, Vec<client::api::Device>) {
        let mut state = self.shared.state.lock();
        state.machine.run(|machine| (machine.device(), machine.devices())).unwrap_or_default()
    }

    /// Sets a parameter.
    ///
    /// # Errors
    /// The errno that says why not (`ENOENT`, `ERANGE`, `EINVAL`).
    pub fn set_param(&self, name: &str, value: &str) -> Result<(), Errno> {
        let mut result = Err(Errno::EIO);
        self.shared.turn(|state, now| {
            if let Some(set) = state.machine.run(|machine| machine.set_param(now, name, value)) {
                result = set;
            }
        });
        result
    }

    /// Files of which the kernel may hold pages, dirty ones too.
    pub fn files_in_kernel(&self) -> Vec<u64> {
        self.shared.state.lock().machine.run(|machine| machine.files_in_kernel()).unwrap_or_default()
    }

    /// Whether it serves programs: it was not told to end yet.
    pub fn is_up(&self) -> bool {
        matches!(self.shared.state.lock().phase, Phase::Mounting | Phase::Mounted)
    }

    /// Whose answers a mount that is not complete lacks, once that takes a while: sentences, the one without which it cannot go on
    /// first.
    pub fn waits(&self) -> Vec<String> {
        let state = self.shared.state.lock();
        if state.phase == Phase::Mounting { state.waits.clone() } else { Vec::new() }
    }

    /// Whether calls can be made.
    pub fn is_mounted(&self) -> bool {
        self.shared.state.lock().phase == Phase::Mounted
    }
}
