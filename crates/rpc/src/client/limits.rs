//! Limits of an import: changes in flight, negotiated between administrator and server, and granted space.

use proto::Errno;
use proto::connect::{TAG_MAX, features};
use stdx::Instant;

use super::Import;

impl Import {
    /// Space that the target granted to this client, as last reported, in bytes. Buffered data counts against it. It is
    /// claimed in the next connect request, because a restarted target has lost its grants.
    pub fn grant(&self) -> u64 {
        self.grant
    }

    /// Stores the total grant that the target reported.
    pub fn set_grant(&mut self, bytes: u64) {
        self.grant = bytes;
    }

    /// The limit of changes in flight: the configured number, reduced to what the server allows.
    pub fn mod_rpcs_in_flight(&self) -> u16 {
        if self.granted.version == 0 { self.config.mod_rpcs_in_flight_max } else { self.slots.limit() }
    }

    /// The number that the server allows.
    fn mod_rpcs_offered(&self) -> u16 {
        match self.granted.features & features::MULTI_MOD_RPCS {
            0 => 1,
            _ => u16::try_from(self.granted.max_mod_rpcs).unwrap_or(TAG_MAX).clamp(1, TAG_MAX),
        }
    }

    /// Applies the server's limits after a connect.
    pub(crate) fn limit_slots(&mut self) {
        let keeps_all = self.granted.features & features::MULTI_MOD_RPCS != 0;
        let tag_max = if keeps_all { TAG_MAX } else { 2 };
        self.slots.set_limit(self.config.mod_rpcs_in_flight_max.min(self.mod_rpcs_offered()), tag_max);
    }

    /// Sets whether somebody waits for requests of [`Slot::Buffered`](crate::Slot::Buffered).
    pub fn press(&mut self, now: Instant, pressed: bool) {
        self.now = now;
        self.slots.press(pressed);
        self.pump();
    }

    /// Sets the limit of changes in flight. Errors: `ERANGE` if it is not 1 to 512, exceeds what the server allows, or
    /// is not below [`Import::rpcs_in_flight`] (unless that is to be raised, see
    /// [`Config::mod_rpcs_raise`](super::Config::mod_rpcs_raise)).
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

    /// Sets it and keeps the limit of changes in flight below it. Errors: `ERANGE` if it is not 2 to 512.
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

    /// Sets [`Config::mod_rpcs_raise`](super::Config::mod_rpcs_raise).
    pub fn set_mod_rpcs_raise(&mut self, raise: bool) {
        self.config.mod_rpcs_raise = raise;
    }

    /// Number of changes sent, by the number then in flight including the new one.
    pub fn mod_rpcs_histogram(&self) -> &[u64] {
        self.slots.histogram().0
    }

    /// Resets the histogram; `wall_ns` is the time by the wall clock.
    pub fn clear_mod_rpcs_histogram(&mut self, wall_ns: i64) {
        self.slots.clear_histogram(wall_ns);
    }
}
