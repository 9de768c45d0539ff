// network_lan.c: network.LAN: lwIP on the board's network. All of it runs where MicroPython waits, never in an interrupt.
#include <string.h>

#include "py/mperrno.h"
#include "py/mphal.h"
#include "py/runtime.h"
#include "extmod/modnetwork.h"
#include "lwip/dhcp.h"
#include "lwip/etharp.h"
#include "lwip/netif.h"
#include "lwip/timeouts.h"
#include "netif/ethernet.h"

#include "board.h"
#include "nic.h"

#define TIMERS_EVERY_MS 10

typedef struct {
    mp_obj_base_t base;
    struct netif netif;
    bool active;
} lan_t;

static lan_t lan = {.base = {&network_lan_type}};

// A frame with its checksum, as whole words.
static uint32_t frame[(NIC_FRAME_MAX + 4 + 3) / 4];

u32_t sys_now(void)
{
    return mp_hal_ticks_ms();
}

// ---- the interface

static err_t send_frame(struct netif *netif, struct pbuf *packet)
{
    if (packet->tot_len > NIC_FRAME_MAX) {
        return ERR_BUF;
    }
    pbuf_copy_partial(packet, frame, packet->tot_len, 0);
    nic_send(frame, packet->tot_len);
    return ERR_OK;
}

static err_t netif_start(struct netif *netif)
{
    netif->linkoutput = send_frame;
    netif->output = etharp_output;
    netif->mtu = 1500;
    netif->name[0] = 'e';
    netif->name[1] = '0';
    netif->hwaddr_len = sizeof(netif->hwaddr);
    netif->flags = NETIF_FLAG_BROADCAST | NETIF_FLAG_ETHARP | NETIF_FLAG_ETHERNET;
    return nic_start(netif->hwaddr) ? ERR_OK : ERR_IF;
}

void ethernet_poll(void)
{
    static bool inside; // lwIP's callbacks may wait, and so come here again
    static uint64_t timers_at;

    if (inside || !lan.active) {
        return;
    }
    inside = true;
    for (size_t size; (size = nic_receive(frame)) != 0;) {
        struct pbuf *packet = pbuf_alloc(PBUF_RAW, size, PBUF_POOL);
        if (packet == NULL) {
            continue; // as if the line had lost it
        }
        pbuf_take(packet, frame, size);
        if (lan.netif.input(packet, &lan.netif) != ERR_OK) {
            pbuf_free(packet);
        }
    }
    nic_wake_again();
    if (clock_ms() >= timers_at) {
        timers_at = clock_ms() + TIMERS_EVERY_MS;
        sys_check_timeouts();
    }
    inside = false;
}

static void ethernet_up(void)
{
    if (!netif_add(&lan.netif, IP4_ADDR_ANY4, IP4_ADDR_ANY4, IP4_ADDR_ANY4, NULL, netif_start, ethernet_input)) {
        mp_raise_OSError(MP_ENODEV); // QEMU was started without a network
    }
    netif_set_hostname(&lan.netif, mod_network_hostname_data);
    netif_set_default(&lan.netif);
    netif_set_up(&lan.netif);
    netif_set_link_up(&lan.netif);
    lan.active = true;
    dhcp_start(&lan.netif);
}

void ethernet_down(void)
{
    if (lan.active) {
        lan.active = false;
        dhcp_stop(&lan.netif);
        netif_remove(&lan.netif);
        nic_stop();
    }
}

// ---- network.LAN

static mp_obj_t lan_make_new(const mp_obj_type_t *type, size_t n_args, size_t n_kw, const mp_obj_t *args)
{
    mp_arg_check_num(n_args, n_kw, 0, 0, false);
    mod_network_register_nic(MP_OBJ_FROM_PTR(&lan));
    return MP_OBJ_FROM_PTR(&lan);
}

// active([on]): with True the address comes by DHCP, unless ifconfig() gives one
static mp_obj_t lan_active(size_t n_args, const mp_obj_t *args)
{
    if (n_args == 2) {
        bool on = mp_obj_is_true(args[1]);
        if (on && !lan.active) {
            ethernet_up();
        } else if (!on) {
            ethernet_down();
        }
    }
    return mp_obj_new_bool(lan.active);
}
static MP_DEFINE_CONST_FUN_OBJ_VAR_BETWEEN(lan_active_obj, 1, 2, lan_active);

static mp_obj_t lan_isconnected(mp_obj_t self)
{
    return mp_obj_new_bool(lan.active && !ip4_addr_isany_val(*netif_ip4_addr(&lan.netif)));
}
static MP_DEFINE_CONST_FUN_OBJ_1(lan_isconnected_obj, lan_isconnected);

static mp_obj_t lan_ifconfig(size_t n_args, const mp_obj_t *args)
{
    return mod_network_nic_ifconfig(&lan.netif, n_args - 1, args + 1);
}
static MP_DEFINE_CONST_FUN_OBJ_VAR_BETWEEN(lan_ifconfig_obj, 1, 2, lan_ifconfig);

static mp_obj_t lan_ipconfig(size_t n_args, const mp_obj_t *args, mp_map_t *keywords)
{
    return mod_network_nic_ipconfig(&lan.netif, n_args - 1, args + 1, keywords);
}
static MP_DEFINE_CONST_FUN_OBJ_KW(lan_ipconfig_obj, 1, lan_ipconfig);

// config("mac")
static mp_obj_t lan_config(mp_obj_t self, mp_obj_t name)
{
    if (mp_obj_str_get_qstr(name) != MP_QSTR_mac) {
        mp_raise_ValueError(MP_ERROR_TEXT("unknown config param"));
    }
    return mp_obj_new_bytes(lan.netif.hwaddr, sizeof(lan.netif.hwaddr));
}
static MP_DEFINE_CONST_FUN_OBJ_2(lan_config_obj, lan_config);

static const mp_rom_map_elem_t lan_locals_table[] = {
    {MP_ROM_QSTR(MP_QSTR_active), MP_ROM_PTR(&lan_active_obj)},
    {MP_ROM_QSTR(MP_QSTR_isconnected), MP_ROM_PTR(&lan_isconnected_obj)},
    {MP_ROM_QSTR(MP_QSTR_ifconfig), MP_ROM_PTR(&lan_ifconfig_obj)},
    {MP_ROM_QSTR(MP_QSTR_ipconfig), MP_ROM_PTR(&lan_ipconfig_obj)},
    {MP_ROM_QSTR(MP_QSTR_config), MP_ROM_PTR(&lan_config_obj)},
};
static MP_DEFINE_CONST_DICT(lan_locals, lan_locals_table);

MP_DEFINE_CONST_OBJ_TYPE(network_lan_type, MP_QSTR_LAN, MP_TYPE_FLAG_NONE, make_new, lan_make_new, locals_dict,
                         &lan_locals);
