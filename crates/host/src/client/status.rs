//! The parameters and the state of a running client.

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

    /// The name of the mount's own device, and its other devices.
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

    /// Files of which the kernel may hold pages, including dirty ones.
    pub fn files_in_kernel(&self) -> Vec<u64> {
        self.shared.state.lock().machine.run(|machine| machine.files_in_kernel()).unwrap_or_default()
    }

    /// Whether the client serves programs and was not asked to unmount.
    pub fn is_up(&self) -> bool {
        matches!(self.shared.state.lock().phase, Phase::Mounting | Phase::Mounted)
    }

    /// The servers that an incomplete mount waits for, once it has waited for a while: sentences, starting with the server
    /// without which it cannot continue.
    pub fn waits(&self) -> Vec<String> {
        let state = self.shared.state.lock();
        if state.phase == Phase::Mounting { state.waits.clone() } else { Vec::new() }
    }

    /// Whether calls can be made.
    pub fn is_mounted(&self) -> bool {
        self.shared.state.lock().phase == Phase::Mounted
    }
}
