"""The code books of the IQ types, as tables in the object code of the kernels that use them.

Each grid lists the points that 8 (IQ1, IQ2) or 4 (IQ3) weights may take. The points are facts of the format, from
ggml-common.h (iq1s_grid, iq2xxs_grid, iq2xs_grid, iq2s_grid, iq3xxs_grid, iq3s_grid). Here a point is a number whose
2-bit or 3-bit digits, lowest first, index the values of the grid. A grid ascends, so only the steps are kept: as
base-128 varints, deflated, in base 85.
"""

from __future__ import annotations

import base64
import zlib

import numpy as np

from .tables import table

# name: (weights of a point, values of a weight)
_TWO_BIT = (8, 25, 43)
_SHAPES = {
    "IQ1_S": (8, (-1, 0, 1)),
    "IQ2_XXS": (8, _TWO_BIT),
    "IQ2_XS": (8, _TWO_BIT),
    "IQ2_S": (8, _TWO_BIT),
    "IQ3_XXS": (4, (4, 12, 20, 28, 36, 44, 52, 62)),
    "IQ3_S": (4, (1, 3, 5, 7, 9, 11, 13, 15)),
}
_PACKED = {
    "IQ1_S": (
        "c-n1M+iu%N5bfN^CApR?^g>%&SvKIpi5=v3)Y<}EpnY&__#^t4MQosXD4Ze)&|k=zU6NMXJ_y>&>|D+{GyIB0xYmv<UPa;g3X9Hn*MzN5mrN"
        "S5TA0^<e>2{%V(6^LqE@Z(_knSnLbR6Ngt!x;ISzWWim;a2<MfA$V7|S#R}yg)$RtIv5B%cSUXr-MRYz$~ip4AB6Zhi>UAfo1eQqh6O7wh5V"
        "ch8sFFY^`NXUcO6S2)qqC9x56>fxE-gsqCY|<guU@IjqY2rFrtzH54`lACe6@yimT~a>mnMt@*OBG9oz#Z8#-@px15Wi0vWNv@6&68(n`58M"
        "9i+e^4U9-o|j?6ZJP=d)%2Qxky3Ubs;pWA{4vKinQw+>ufv&Dk<rmH0G>WOHRn8w{B&w=ZvRLc=qSkPZ$41GZor)LfU9HFR=>j;)R3M+2g=R"
        "MkF;o-l-?=~R#86LZW5<+)$GhF4+6TOd@Ap6|I!uMMXcI_}AsG}xn&<b@9HfVw$`q`;U3$fNtyTucKqlbeXxPzTJKFIC|8o4s-^S=Y12_QM1"
        ";Dzh0YL}~nnq81MbtH}zN=C3hIjVK*x^^@&M?h<*q?NiIFU{&AEOd*eoV^=9yk)PywX4NbTeM^z!%E~RC-}MicST(AQ5y;$l699{F60=NrII"
        "ZOg_o0|wnk3Dwo?0^DVFlI2ou67^-@W$4+Tq<Z`+bC?Q3_4H^m)a!<UYm4BZwh9&|ifA8C2=lCvI5Ua19NJeJ0jrdbuP5D88Is%!a$tC;><{"
        "E=$NFXF8pSY-rVpiCUNZu%x<wfxm)5l73N%X0MXe3zvZNd@f&uCQ8G!RN!B$psmDGkg#IeS#QBkzJoh;n=<#oU!NO%Gl-hm8(%llCf9=0-p_"
        "@!gU?HiV5_V0=Y6dLNB-QQ7h{wr024&LyGn625GpEdZ5eAK<*J&9az*m<JT~Rr<Qa*Q;zR0$M$ih?lsU&R%3!SJI)Y8LQn5a$qRJiWc`sbLl"
        "4wtcx871f{dQQ*a}&EWxmYrExX0|QOHtPv1y;CUhjPxNA0I9yp75z^XVmLi!bK1@a5F-Z8R{6Z;H1utx7WuGthbKt)rss4M)ixxAS0|AumaD"
        "{`wF0zLMFp9khf8F!!boTN`I^P^JF=^dwDDe&u{`!GzXT7L|8?lqDMlCg|yjQAh%XAf=^KA6>U4k36rJlU{sG_WnHsYqy7on_N$G?k)MT-3L"
        "N0Cd{B}_<bWGe-h6+R{6E!s%ic`B>!PB5q126q~B?PVi*gt%r|tygO{Qk_J-lW=dHO=`5h1Hx%eW1ImUdNn+xrt`t8MJBI`5jvR+^"
    ),
    "IQ2_XXS": (
        "c-muNVrFJyXXasIV-jcP;oxMJVd9X8XXatmb`i;7Qb_pE#LOcI6l9Z7Wabfx0n%#9;(`_I1}+MBm{@^Al0dy?H8zJBh2C-lmC7rq@UUicNEm"
        "RbEn!sL&CDUes$xEa(Q6)~*lT8H9s|dE*4d038P{_&aahU9Gc9M7-@(ZAA0#8TiqTPd4bu-MiINS>d$l2s;o#!}+FPLDD9>8MZ^0)t1887^W"
        "Tns@#zq#P9@gEA5uA#L8NEMnad2|5Cveo*CB0?*&&*WuoiTU~vml4}9mW%kf4F%JG-fb{9%l4dz|7js#8kA8b)P;Hhq+@Dqlm^u#t+OO|0*n"
        "Cbn`1US6IZ{#MI05nVUyMCb2Z@DC2HsC8b`b4Q%rnAMyH`wlIEYoWZh#V+$hyYn(-h"
    ),
    "IQ2_XS": (
        "c-mc%F-Tic6ox(j@g}#|OC<7m>64^=iSkGrlt)8`b}5RWrPx8RDN+*CL0hCE2pYt}>>WB4N{UEZa1=K|kbvOiU?))!aTYqb1WJa!Ya&LMa}P"
        "h~eCNM^2bd9Na5!k3*870t*Hwf|EhQLfN?JOs7n*I7waBPC?rlLO+ef00E5zFF#c%^nk{0oRlXg{}wLc`6T{*8V)IEw;v381YVJ;y1?grmzB"
        "5cJC+OLt7+hNuiw4SYq(j~n+R;^2B(=7!>CaRPwq)))wiPdN*I{MN1LZ^_hbJ^YlN|zsg2%-M;j*A<wZ8k)r7#xblYTQcb+S_N=R(xtkz0li"
        "ihPor`6wPX<N{z1D*nHzwWUxmgGsiH=xJkDt%kn#oK0k*w(EX}H9`?~t1{&$_%m0Qq_80a)@<s8i^V2R}(3{A5<~AW89`YubsN5uX8jqy;A~"
        "@qdSsp1ZPJCmT$a(MzKTwd7o)bg12Uk<WSCp+oywvg!&0>qbc254HLwdc@g%E7Dv`un+3Zc~7An?f}&R)Srs4U;F5q=V8o&Tv?RgV"
    ),
    "IQ2_S": (
        "c-nnay-OoO6nEZZve|Jk*lgT&N&Jc&dkBjMhl-Vj5bOkrg%Gt6#ShXP2gfxY+<zcqV=dU-Rd<Dw|3VZYt&L!3W8s^b-OX%_Hao-2o8Q-aI{="
        "8_AfQ7VKUrN`%X*cZH?qSpxpFvFN<fJlrbv|a>1WQxPzQQIQuNTgboC>1$Sp<#F1HdSwI4_M1Q{nUcWZgcYbXWiR!wE8HH<?An65vFE`5-`H"
        "P%F)Jm=T2A0l_SBzTE4Iqr9K+6N@Im8y=T8%W$%)7zg}nLocRWAAd%c1B)Gp%BKEtg37^q8KSaAm^ZRn*#RZ^MYeWto{WW<qKnk^P7DeS(<|"
        "9C{e0h2f2R8G!WP7P~N1<ScVDD3w#vb+em0EWGhn}*Y1JxwF{=~Yj2-E?ZJG{dfM|r=6?AY``vd5R7PIV#_U8)>)6`NKbX9wxe>{5y^-eclf"
        "0D<a2qNXmFVb%JyNgMzU)S4(CkF|3C&QL4yV*JWoe@B_zlh-wfU0?uJ+R_zAIPlq^GM*T&!KOukdNCBMhdrW6(w7LJ8ZsgPvH|-R5%T9F_mQ"
        "M%}%JC!zk;A~k5Wc*<($tVn~lUeI$U<ND}^{}29S<;Pz(`-_1Gh0Tdqa86iz"
    ),
    "IQ3_XXS": (
        "c-kF}K~ID*6ol>Y=mSb06<WIncY$3=(2yAM>`lE9|Np<Sc$j2nGWq5X$UzERK7x{E%D|>BQq5pcrG>PDxph7_HAr{vBYHv*cdV0O)CtUZJ2G"
        "E2q_ob^ZK1ZScNzajl$8UJ(A<+MzzJ!U^-L>Ga`ILG4HKV^$6)gVVbCMD!8Pq?(`jAzLmQUhji9F8H_GYz%P^Zs!k$647z^#<AY<`zPTxiRU"
        "1f8S^LUw`_0KfFFR}rub!+w7=MPrG<OZ}~fB7vBnE"
    ),
    "IQ3_S": (
        "c-keA+fKtk3`E)SE%DwGn$m`XR8*u2-Vy)*XL!rgt}T1!*nUchkWvDWSOpXxff0=yCnjRBRTfQ*L=h6}D5^9m6AYw`3Z~5QRnqP#h<ZksOlW"
        "I2JTjHHhvu*f2Q<*EDI8gh)X)@8gF?y42SVs2mQ`~gRalT5AC>*iRB;)gg;$;aB{8HzdAv2IA}9_1=r|KO#Ng~P5Ai%&wPl^jh<7rXYsz(k_"
        "#1Crk>%Bfpp9)1TqnQ+VsVZjCftoB+-9)0Nri1yt`>dn^>DZbZob7N;cvFMM7K(W8${TplNK2ae8Y22dx3xK>voo$b=Q!Lz7p36=J~3#i`J8"
        "*UZuoxikHuF!0#39cWm~!EcX8LtXXs_(tlcSv~S1D7k-%LC@8vE?syxQvvogHdx=w@znAOj{s-R}55W"
    ),
}


def points(name: str) -> np.ndarray:
    """i8 (points, weights) of a grid."""
    width, values = _SHAPES[name]
    digit = 2 if width == 8 else 3
    codes, code, step, shift = [], 0, 0, 0
    for byte in zlib.decompress(base64.b85decode(_PACKED[name])):
        step |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            code += step
            codes.append(code)
            step = shift = 0
    index = np.array(codes)[:, None] >> digit * np.arange(width) & (1 << digit) - 1
    return np.array(values, np.int8)[index]


def grid(name: str, more: int = 0):
    """() -> address of the grid's points, all values raised by `more`."""
    return table((points(name) + np.int8(more)).tobytes())


def _sign_masks() -> bytes:
    """For each byte of signs eight bytes, 0 or -1: weight i is negative where bit i is set."""
    negative = np.arange(256)[:, None] >> np.arange(8) & 1
    return (-negative).astype(np.int8).tobytes()


def _even_sign_masks() -> bytes:
    """The same for each seven bits; the eighth sign makes the number of negative weights even."""
    seven = np.arange(128)[:, None] >> np.arange(7) & 1
    negative = np.concatenate([seven, seven.sum(axis=1, keepdims=True) & 1], axis=1)
    return (-negative).astype(np.int8).tobytes()


signs = table(_sign_masks())  # () -> address of the masks of a byte of signs
even_signs = table(_even_sign_masks())  # () -> address of the masks of seven bits of signs
