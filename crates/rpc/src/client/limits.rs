//! What the server allows: how many changes may be in flight, as far as the administrator wants them, and how much data may be buffered.

use proto::Errno;
use proto::connect::{TAG_MAX, features};
use stdx::Instant;

use super::Import;

impl Import {
    /// Space that the target has promised to this client and that is not used, as the target said last, in bytes. What is
    /// buffered for it is part of it. It is told when the client connects again: a restarted target knows no grants.
    pub fn grant(&self) -> u64 {
        self.grant
    }

    /// The target has said what this client holds now.
    pub fn set_grant(&mut self, bytes: u64) {
        self.grant = bytes;
    }

    /// How many changes may be in flight: what was wanted, as far as the server allows it.
    pub fn mod_rpcs_in_flight(&self) -> u16 {
        if self.granted.version == 0 { self.config.mod_rpcs_in_flight_max } else { self.slots.limit() }
    }

    /// How many the server allows.
    fn mod_rpcs_offered(&self) -> u16 {
        match self.granted.features & features::MULTI_MOD_RPCS {
            0 => 1,
            _ => u16::try_from(self.granted.max_mod_rpcs).unwrap_or(TAG_MAX).clamp(1, TAG_MAX),
        }
    }

    /// A connection is there: its limits are the server's.
    pub(crate) fn limit_slots(&mut self) {
        let keeps_all = self.granted.features & features::MULTI_MOD_RPCS != 0;
        let tag_max = if keeps_all { TAG_MAX } else { 2 };
        self.slots.set_limit(self.config.mod_rpcs_in_flight_max.min(self.mod_rpcs_offered()), tag_max);
    }

    /// Somebody waits for requests of [`Slot::Buffered`](crate::Slot::Buffered), or nobody does any more.
    pub fn press(&mut self, now: Instant, pressed: bool) {
        self.now = now;
        self.slots.press(pressed);
        self.pump();
    }

    /// Sets how many changes may be in flight. `ERANGE`: not 1 to 512, more than the server allows, or not below
    /// [`Import::rpcs_in_flight`] (unless that is to be raised, see [`Config::mod_rpcs_raise`](super::Config::mod_rpcs_raise)).
    pub fn set_mod_rpcs_in_flight(&mut self, now: Instant, count: u64) -> Result<(), Errno> {
        self.now = now;
        let count = u16::try_from(count).map_err(|_| Errno::ERANGE)?;
        let connected = self.granted.version != 0;
        if !(1..=TAG_MAX).contains(&count) || connected && count > self.mod_rpcs_offered() {
            return Err(Errno::ERANGE);
        }
        let count = if count >= self.config.rpcs_in_flight_max {
            if !self.config.mod_rpcs_raise {
                return Err(Errno::ERANGE);
            }
            self.config.rpcs_in_flight_max = (count + 1).min(TAG_MAX);
            count.min(TAG_MAX - 1)
        } else {
            count
        };
        self.config.mod_rpcs_in_flight_max = count;
        if connected {
            self.limit_slots();
            self.pump();
        }
        Ok(())
    }

    /// See [`Config::rpcs_in_flight_max`](super::Config::rpcs_in_flight_max).
    pub fn rpcs_in_flight(&self) -> u16 {
        self.config.rpcs_in_flight_max
    }

    /// Sets it; changes in flight stay below. `ERANGE`: not 2 to 512.
    pub fn set_rpcs_in_flight(&mut self, count: u64) -> Result<(), Errno> {
        let count = u16::try_from(count).ok().filter(|count| (2..=TAG_MAX).contains(count)).ok_or(Errno::ERANGE)?;
        self.config.rpcs_in_flight_max = count;
        if self.config.mod_rpcs_in_flight_max >= count {
            self.config.mod_rpcs_in_flight_max = count - 1;
            if self.granted.version != 0 {
                self.limit_slots();
            }
        }
        Ok(())
    }

    /// See [`Config::mod_rpcs_raise`](super::Config::mod_rpcs_raise).
    pub fn mod_rpcs_raise(&self) -> bool {
        self.config.mod_rpcs_raise
    }

    /// Sets it.
    pub fn set_mod_rpcs_raise(&mut self, raise: bool) {
        self.config.mod_rpcs_raise = raise;
    }

    /// How often so many changes were in flight when one more was sent, by their number, that one included.
    pub fn mod_rpcs_histogram(&self) -> &[u64] {
        self.slots.histogram()
    }

    /// Begins to count anew.
    pub fn clear_mod_rpcs_histogram(&mut self) {
        self.slots.clear_histogram();
    }
}
